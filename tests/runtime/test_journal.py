"""The journal of a real training: under the guard, and under `stayfinite run`."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from tests.launch import forked
from torch import nn

from stayfinite import Guard
from stayfinite.demo import attention
from stayfinite.recover.policy import Policy
from stayfinite.report.journal_read import read_journal
from stayfinite.report.model import load_run
from stayfinite.runtime import journal as journaling
from stayfinite.runtime.journal import DeviceRows, LayerSampler
from stayfinite.runtime.state import TrainState


def rows_of(folder):
    lines = [json.loads(t) for t in (folder / "journal.jsonl").read_text().splitlines()]
    return [r for r in lines if "event" not in r and "kind" not in r], lines


def loss_fn(model, x):
    return torch.log(model(x).pow(2).mean() * x.min().sign().clamp(min=0))


def train(num_steps, bad=(), **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), **options)
    for step in range(num_steps):
        x = torch.rand(8, 4) + 0.1
        if step in bad:
            x[0, 0] = -1.0
        guard.log(a=torch.tensor(float(step), requires_grad=True), b=1)
        guard.step(loss_fn, x)
    return guard


def test_every_step_once_with_its_incident_parts_and_layers(tmp_path):
    guard = train(20, bad=(7,), run_dir=tmp_path / "run", clip_norm=1.0)
    guard.close()
    rows, lines = rows_of(tmp_path / "run")
    assert [r["step"] for r in rows] == list(range(20))
    bad = rows[7]
    assert (bad["loss"], bad["applied"], bad["flags"]) == ("-inf", False, ["incident"])
    fine = [r for r in rows if r["step"] != 7]
    assert all(math.isfinite(r["loss"]) and r["grad_norm"] > 0 and r["lr"] == 0.001 for r in fine)
    assert [r["parts"] for r in fine] == [{"a": s, "b": 1} for s in range(20) if s != 7]
    reported = [r for r in lines if r.get("event") == "incident"]
    assert [(e["step"], e["id"]) for e in reported] == [(7, guard.incidents[0].id)]
    layers = [r for r in lines if r.get("event") == "layers"]
    assert layers[0]["names"] == ["0", "1"] and layers[0]["dtypes"] == ["float32", "float32"]
    assert all(0 < w < 1 for w in layers[-1]["weight"])
    assert lines[-1]["event"] == "end" and lines[0]["torch"] == torch.__version__


def test_without_a_run_folder_nothing_is_journaled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guard = train(3)
    guard.close()
    assert guard.engine.journal is None and list(tmp_path.iterdir()) == []


def test_a_guard_that_nobody_closes_still_writes_its_last_lines(tmp_path):
    guard = train(5, run_dir=tmp_path)
    del guard
    import gc

    gc.collect()
    assert read_journal(tmp_path / "journal.jsonl").curves.num_rows == 5


def test_the_scale_of_each_step_is_its_own(tmp_path):
    """The scaler changes one tensor in place; the journal must not show the last value everywhere."""
    model = nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Guard(model, optimizer, scaler=scaler, run_dir=tmp_path) as guard:
        for _ in range(6):
            guard.step(lambda m, x: m(x).pow(2).mean(), torch.ones(4, 2))
    rows, _ = rows_of(tmp_path)
    scales = [r["scale"] for r in rows]
    assert scales == sorted(scales) and scales[0] < scales[-1] and set(scales) <= {4, 8, 16, 32}
    assert [r.scale for r in guard.engine.records()] == scales


def test_a_loss_that_is_a_temporary_is_journaled_as_it_was_before_the_scaler(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=1e-3), []
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Guard(model, optimizer, scaler=scaler, run_dir=tmp_path / "run") as guard:
        for x in guard(list(torch.rand(4, 8, 4))):
            loss = model(x).pow(2).mean()
            losses.append(loss.item() / 2)
            scaler.scale(loss / 2).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert [r["loss"] for r in rows_of(tmp_path / "run")[0]] == pytest.approx(losses, rel=1e-4)


def test_values_on_a_device_are_read_together_and_rows_keep_their_order(monkeypatch):
    class Late:
        def __init__(self):
            self.is_done = False

        def query(self):
            return self.is_done

        def synchronize(self):
            self.is_done = True

    stage = DeviceRows()
    first = [((0, 0, torch.tensor(1.0), None, (), None, True), 0.0)]
    assert stage(first, False) == first, "on the CPU nothing is held back"
    late = Late()
    stage._under_way.append((first, [(0, 2)], torch.tensor([5.0]), late))
    second = [((1, 0, torch.tensor(2.0), None, (), None, True), 1.0)]
    late.is_done = False
    got = stage(second, False)
    assert [row[0] for row, _ in got] == [0, 1] and got[0][0][2] == 5.0
    stage._under_way.append((first, [(0, 2)], torch.tensor([5.0]), Late()))
    assert stage._arrived(False) == [], "one batch may be late"
    assert stage._arrived(True)[0][0][2] == 5.0


def test_layers_are_looked_at_ever_more_seldom():
    state, model = TrainState(), nn.Linear(2, 2)
    state.add_root(model, "")
    sampler = LayerSampler(state, lines=10, share=math.inf)
    taken = [s for s in range(10_000) if sampler.sample(s) is not None]
    assert taken[:10] == list(range(10)) and len(taken) < 10 * math.log(10_000) + 10


def test_looking_at_layers_takes_its_share_of_the_time_and_no_more(monkeypatch):
    clock = iter(range(10**9))
    monkeypatch.setattr(journaling, "_clock", lambda: float(next(clock)))
    state, model = TrainState(), nn.Linear(2, 2)
    state.add_root(model, "")
    sampler = LayerSampler(state, lines=10**6, share=0.01)
    taken = [s for s in range(2000) if sampler.sample(s) is not None]
    # A look takes one tick of this clock and every refusal one: a hundred of them to each look.
    assert taken[0] == 0 and {b - a for a, b in itertools.pairwise(taken)} == {100}


def test_layers_show_largest_weight_gradient_and_update():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1).half())
    state = TrainState()
    state.add_root(model, "")
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(2.0)
    state.take_snapshot(0)
    model[0].weight.grad = torch.full((2, 2), 3.0)
    model[0].bias.grad = torch.full((2,), 4.0)
    with torch.no_grad():
        model[0].weight[0, 0] = -5.0
        model[1].bias.add_(1.0)
    found = LayerSampler(state).sample(3)
    assert found == {
        "names": ["0", "1"],
        "dtypes": ["float32", "float16"],
        "weight": [5.0, 3.0],
        "grad": [pytest.approx(math.sqrt(4 * 9 + 2 * 16), rel=1e-3), None],
        "grad_norm": pytest.approx(math.sqrt(68), rel=1e-3),
        # What moved, as a share of the layer's size now, over the four steps since the snapshot.
        "update": [
            pytest.approx(7 / math.sqrt(25 + 3 * 4 + 2 * 4) / 4, rel=1e-3),
            pytest.approx(1 / math.sqrt(4 + 4 + 9) / 4, rel=1e-3),
        ],
    }


@pytest.mark.slow
def test_run_journals_by_default_and_tells_a_command(tmp_path):
    hook = f"cat >> {tmp_path}/reported.json; echo >> {tmp_path}/reported.json"
    (tmp_path / "train.py").write_text(Path(attention.__file__).read_text())
    args = ["-m", "stayfinite", "run", "--run-dir", "r", "--on-incident", hook, "--sink", "logging"]
    done = forked([*args, "train.py"], tmp_path)
    assert done.code == 0, done.err
    view = load_run(tmp_path / "r")
    assert view.data.curves.num_rows == 60 and view.data.is_ended
    assert view.data.head["script"].endswith("train.py")
    reported = [json.loads(t) for t in (tmp_path / "reported.json").read_text().splitlines() if t]
    assert [t["event"]["step"] for t in reported] == [i.event.step for i in view.incidents]
    assert len(view.incidents) == view.data.curves.num_skipped == 3
    assert view.heat is not None and "attention.query" in view.heat.names


@pytest.mark.slow
def test_run_with_a_sink_that_is_not_known(tmp_path):
    (tmp_path / "train.py").write_text("print('ran')")
    done = forked(["-m", "stayfinite", "run", "--sink", "excel", "train.py"], tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "unknown sink 'excel'; known: tensorboard, wandb, mlflow, logging" in done.err


def log_loss(model, x):
    return torch.log(model(x).pow(2).mean() * 0)


def root_loss(model, x):
    return torch.sqrt(-model(x).pow(2).mean() - 1)


def ratio_loss(model, x):
    return model(x).pow(2).mean() * 0 / x.mul(0).sum()


@pytest.mark.slow
def test_thirty_incidents_of_three_kinds_keep_three_capsules(tmp_path):
    """What a run leaves on disk does not grow with how often the same thing fails."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(500, 500), nn.Linear(500, 1))
    losses = (log_loss, root_loss, ratio_loss)
    settings = {"diagnose_seconds": 0.5}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    policy = Policy.parse("skip", max_consecutive_skips=1000)
    with Guard(
        model, optimizer, run_dir=tmp_path / "run", policy=policy, settings=settings
    ) as guard:
        for step in range(30):
            guard.step(losses[step % 3], torch.rand(2, 500) + 0.5)
        assert len(guard.ledger) == 30
    capsules = list((tmp_path / "run" / "incidents").glob("*/capsule.pt"))
    assert len(capsules) == 3
    assert sum(c.stat().st_size for c in capsules) < 25 << 20
    assert len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()) == 30
