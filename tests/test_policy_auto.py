"""`--policy auto` and `heal`: a bad batch is left out; a training that has run away is stopped, or healed."""

import json
import stat

import pytest
import torch

from stayfinite import BudgetExceededError, Guard, Incident
from stayfinite.recover.policy import Outlook, Policy, Tally

TRAINING = """
import math, sys, torch
from torch.utils.data import DataLoader, TensorDataset
rate, kind = float(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
x = torch.randn(480, 8)
y = x.sum(1, keepdim=True)
if kind == "bad_batch":
    x[163] = math.nan
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=rate)
losses = []
{head}
    if kind == "own_rate":
        for group in optimizer.param_groups:
            group["lr"] = rate
    loss = ((net(a) - b) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    if kind == "clips":
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9)
    optimizer.step()
    losses.append(loss.item())
early, late = sum(losses[:5]), sum(losses[-5:])
print("end", early > late, math.isfinite(late), optimizer.param_groups[0]["lr"])
"""
LOADER = "for a, b in DataLoader(TensorDataset(x, y), batch_size=16):"
LOADERLESS = "for i in range(0, 480, 16):\n    a, b = x[i:i + 16], y[i:i + 16]"
PREFETCHED = """
a, b = x[:16], y[:16]
for i in range(16, 480, 16):
    loss = ((net(a) - b) ** 2).mean()
    a, b = x[i:i + 16], y[i:i + 16]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
early, late = sum(losses[:5]), sum(losses[-5:])
print("end", early > late, math.isfinite(late), optimizer.param_groups[0]["lr"])
"""


@pytest.fixture
def train(nursery, tmp_path):
    def train(policy, rate, kind="plain", head=LOADER):
        script = tmp_path / "train.py"
        body = TRAINING.format(head=head)
        if head == PREFETCHED:
            body = TRAINING.partition("{head}")[0] + PREFETCHED
        script.write_text(body)
        options = ["--run-dir", str(tmp_path / "run")]
        options += ["--policy", policy] if policy else []
        done = nursery.run(
            ["-m", "stayfinite", "run", *options, str(script), str(rate), kind], tmp_path
        )
        found = [
            Incident.from_json(p.read_text())
            for p in sorted((tmp_path / "run").glob("incidents/*/incident.json"))
        ]
        return done, found

    return train


def plain(nursery, tmp_path, rate):
    return nursery.run([str(tmp_path / "train.py"), rate, "plain"], tmp_path)


def rate_of(incident: Incident) -> str:
    fix = incident.diagnosis.fixes[0]
    assert fix.experiment == "smaller_lr" and fix.status in ("verified", "proved")
    return fix.after.removeprefix("lr=")


@pytest.mark.parametrize("head", [LOADER, LOADERLESS, PREFETCHED], ids=["loader", "range", "ahead"])
@pytest.mark.parametrize("rate", ["1e4", "1e30"])
def test_a_training_that_ran_away_is_stopped_at_once_with_a_rate_that_works(
    head, rate, train, nursery, tmp_path
):
    done, (incident,) = train(None, rate, head=head)
    assert (done.code, done.out) == (1, "")
    assert incident.action.kind == "stopped" and "cannot help" in incident.action.detail
    lower = rate_of(incident)
    assert f"try: a learning rate of {lower} instead of" in done.err
    assert "does not" in incident.diagnosis.fixes[0].why
    tried = plain(nursery, tmp_path, lower)
    assert tried.out.startswith("end True True"), tried.out


def test_the_last_healthy_state_is_on_disk_for_its_owner(train, tmp_path):
    train("auto", 1e4)
    path = tmp_path / "run" / "last_healthy.pt"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    saved = torch.load(path, weights_only=True)
    assert saved["step"] == 0 and set(saved) >= {"model", "optimizer", "scheduler"}
    assert all(bool(t.isfinite().all()) for t in saved["model"].values())
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    net.load_state_dict(saved["model"])
    torch.optim.SGD(net.parameters(), lr=1.0).load_state_dict(saved["optimizer"])


@pytest.mark.parametrize("kind", ["plain", "own_rate"])
def test_heal_goes_on_with_the_rate_that_was_proved(kind, train, tmp_path):
    done, (incident, *others) = train("heal", 1e4, kind)
    assert (done.code, done.out, others) == (0, "end True True 10000.0\n", []), done.err
    assert (
        incident.action.kind == "rolled_back" and "healed: from here on" in incident.action.detail
    )
    assert f"a learning rate of {rate_of(incident)} instead of 1e+04" in incident.action.detail
    ledger = [json.loads(t) for t in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert ledger[-1]["kind"] == "healed" and ledger[-1]["incident"] == incident.id
    journal = (tmp_path / "run" / "journal.jsonl").read_text()
    assert '"event":"change"' in journal and '"about":"healed"' in journal


@pytest.mark.parametrize("policy", [None, "auto", "heal", "skip"])
def test_a_bad_batch_is_left_out_as_ever(policy, train):
    done, (incident,) = train(policy, 0.01, "bad_batch")
    assert (done.code, done.out) == (0, "end True True 0.01\n"), done.err
    assert (incident.event.phase, incident.action.kind) == ("data", "skipped")


@pytest.mark.parametrize("policy", ["auto", "heal"])
def test_a_healthy_twin_is_left_alone(policy, train):
    done, found = train(policy, 0.01)
    assert (done.code, done.out, done.err, found) == (0, "end True True 0.01\n", "", [])


def test_skip_skips_as_ever_and_changes_nothing(train, tmp_path):
    done, found = train("skip", 1e4)
    assert done.code == 0 and {i.action.kind for i in found} == {"skipped"}
    assert not (tmp_path / "run" / "last_healthy.pt").exists()


def test_clipping_is_not_advised_where_the_loop_clips(train):
    _, (incident,) = train("auto", 1e4, "clips")
    titles = [f.title for f in incident.diagnosis.fixes]
    assert titles and not any("clip the gradient norm" in t for t in titles)


def test_a_guard_stops_too_and_its_weights_are_the_last_healthy_ones(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    start = {n: p.clone() for n, p in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e18)
    x = torch.randn(8, 4)
    with Guard(model, optimizer, policy="auto", run_dir=tmp_path) as guard:
        with pytest.raises(BudgetExceededError, match="cannot help"):
            for _ in range(6):
                guard.step(lambda m, b: (m(b) - 1).square().mean(), x)
        assert guard.incidents[-1].action.kind == "stopped"
    assert all(torch.equal(p, start[n]) for n, p in model.state_dict().items())
    assert (tmp_path / "last_healthy.pt").exists()


def test_a_guard_that_heals_leaves_no_change_behind(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e18)
    x = torch.randn(8, 4)
    from torch.optim import optimizer as hooks

    before = len(hooks._global_optimizer_pre_hooks)
    with Guard(model, optimizer, policy="heal") as guard:
        outcomes = [guard.step(lambda m, b: (m(b) - 1).square().mean(), x) for _ in range(30)]
        assert len(hooks._global_optimizer_pre_hooks) > before
    assert len(hooks._global_optimizer_pre_hooks) == before
    assert outcomes[-1].applied and outcomes[-1].loss < outcomes[0].loss
    assert optimizer.param_groups[0]["lr"] == 1e18


def _first_steps(policy, first, later):
    """20 steps on `first` batches and then on `later` ones; returns the guard, and the error that ended them."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Guard(model, optimizer, policy=policy) as guard:
        try:
            for i in range(20):
                guard.step(
                    lambda m, x: m(x).square().mean() + x.sum().sqrt(), first if i < 15 else later
                )
        except BudgetExceededError as e:
            return guard, str(e)
    return guard, None


@pytest.mark.usefixtures("causes_only")
def test_a_run_of_which_no_step_can_be_applied_is_stopped():
    negative, good = -torch.ones(2, 4), torch.ones(2, 4)
    guard, text = _first_steps("auto", negative, good)
    assert "not one of the first 13 steps could be applied" in text
    assert "last healthy state" not in text  # there is none: nothing was trained
    assert len(guard.incidents) == 13
    guard, text = _first_steps("skip", negative, good)
    assert (text, len(guard.incidents)) == (None, 15)


@pytest.mark.usefixtures("causes_only")
def test_bad_samples_at_the_start_of_a_data_set_are_skipped_as_ever():
    guard, text = _first_steps("auto", torch.full((2, 4), float("nan")), torch.ones(2, 4))
    assert (text, len(guard.incidents)) == (None, 15)


def test_what_the_policies_answer():
    lost = Outlook(reason="the weights are 1e30")
    cured = Outlook(reason="the weights are 1e30", change="a learning rate of 0.1", lr_factor=0.1)
    kinds = {
        (name, which): Policy.parse(name).decide(Tally(1, 1, 0), outlook=outlook).kind
        for name in ("auto", "heal", "skip", "rollback")
        for which, outlook in (("none", None), ("lost", lost), ("cured", cured))
    }
    assert kinds == {
        ("auto", "none"): "skip", ("auto", "lost"): "stop", ("auto", "cured"): "stop",
        ("heal", "none"): "skip", ("heal", "lost"): "stop", ("heal", "cured"): "heal",
        ("skip", "none"): "skip", ("skip", "lost"): "skip", ("skip", "cured"): "skip",
        ("rollback", "none"): "rollback", ("rollback", "lost"): "rollback",
        ("rollback", "cured"): "rollback",
    }  # fmt: skip
    assert Policy.parse("heal").decide(Tally(1, 1, 99), outlook=cured).kind == "stop"
    assert Policy().name == "skip"
