"""An unmodified script's loop runs the probes, whatever it looks like, and nothing of it remains."""

import contextlib
import sqlite3
import textwrap

import pytest
from tests.ladder.helpers import tree

from stayfinite.errors import UsageError
from stayfinite.preflight.capture import script as capture
from stayfinite.preflight.capture.script import check_script
from stayfinite.preflight.target import ScriptTarget

HEAD = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
X = torch.randn(96, 8); Y = (X.sum(1) > 0).long()
m = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
o = torch.optim.Adam(m.parameters(), lr=1e-3)
ce = nn.CrossEntropyLoss()
loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
def step(x, y):
    loss = ce(m(x), y); o.zero_grad(); loss.backward(); o.step(); return loss
"""


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """Check a script with this body."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(body, only="forward,edges", head=HEAD, **more):
        (tmp_path / "train.py").write_text(head + textwrap.dedent(body))
        return check_script(ScriptTarget("train.py"), only=[only], **more)

    return run


def value_of(report, check):
    return next(f.value for f in report.findings if f.check == check)


def problems(report):
    return [f"{f.status} {f.check} {f.subject}: {f.value}" for f in report.findings if f.is_problem]


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_forks")]


def test_plain_loop_is_probed_from_before_its_first_step(checked):
    report = checked("for x, y in loader: loss = step(x, y)", only="init,forward,edges")
    assert report.verdict == "ready", problems(report)
    assert report.notes[0].startswith("3 real steps taken and undone; loss 0.6956")
    assert "loss 0.6957" in value_of(report, "forward/finite")  # the same first batch again


def test_gradient_accumulation_gets_as_many_batches_as_it_takes(checked):
    report = checked("""
        for epoch in range(9):
            for i, (x, y) in enumerate(loader):
                (ce(m(x), y) / 2).backward()
                if i % 2:
                    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0); o.step(); o.zero_grad()
        """, only="config,forward,edges")  # fmt: skip
    assert report.verdict == "ready", problems(report)
    assert value_of(report, "config/clip") == "clip_grad_norm_ 1"


def test_a_loop_that_fetches_ahead_runs_the_batch_that_was_meant(checked):
    report = checked("""
        for epoch in range(99):
            it = iter(loader); batch = next(it)
            while batch is not None:
                ahead = next(it, None)
                step(*batch)
                batch = ahead
        """, only="edges")  # fmt: skip
    assert report.verdict == "ready", problems(report)


def test_a_loop_without_a_loader_is_probed_through_its_model(checked):
    report = checked("""
        for i in range(300):
            rows = torch.randint(96, (16,))
            step(X[rows], Y[rows])
        """, only="data,forward,edges")  # fmt: skip
    assert report.count("fail") == 0, problems(report)
    assert any("no batches from a DataLoader" in n for n in report.notes)
    assert value_of(report, "data/coverage") == "the training takes its batches from no loader"
    assert {f.check for f in report.findings if f.status == "pass"} >= {
        "forward/finite",
        "edges/blank-batch",
    }


@pytest.mark.parametrize("num_steps", [3, 300])
def test_two_models_without_a_loader_are_looked_at_and_rehearsed(checked, num_steps):
    """No batch of theirs can be changed, which is said; what needs none is done all the same."""
    report = checked(f"""
        d = nn.Linear(8, 1); od = torch.optim.Adam(d.parameters(), lr=1e-3)
        for i in range({num_steps}):
            od.zero_grad(); d(X[:16]).mean().backward(); od.step()
            step(X[:16], Y[:16])
        """, only="data,init,forward,stability")  # fmt: skip
    assert value_of(report, "data/coverage") == "the training takes its batches from no loader"
    assert value_of(report, "init/finite") == "6 parameters and buffers"
    assert "finite" in value_of(report, "stability/rehearsal")
    reasons = {s.group: s.reason for s in report.skipped}
    assert "takes its batches from no loader and has 2 " in reasons["forward"], reasons
    assert not any("was changed" in n for n in report.notes)


def test_a_probe_that_kills_the_script_is_answered_and_the_others_go_on(checked):
    report = checked("""
        m.insert(1, nn.BatchNorm1d(16)); o = torch.optim.Adam(m.parameters(), lr=1e-3)
        for epoch in range(9):
            for x, y in loader:
                if not bool((x != 0).any()): os.abort()
                step(x, y)
        """, only="edges")  # fmt: skip
    assert "the script was started" in report.notes[1]
    said = " ".join(f"{f.value} {f.why}" for f in report.findings if f.check == "edges/blank-batch")
    assert "SIGABRT" in said
    assert any(f.check == "edges/repeated" for f in report.findings)


def test_a_loop_of_few_steps_is_started_again_for_the_rest(checked):
    # What a start before it had written would make a script that resumes another training.
    report = checked("""
        assert not os.path.exists("last.pt")
        it = iter(loader)
        for i in range(9):
            step(*next(it))
            torch.save(m.state_dict(), "last.pt")
        """, only="edges")  # fmt: skip
    assert report.verdict == "ready", problems(report)
    assert not report.skipped
    assert any("the script was started" in n for n in report.notes)


WRITERS = """
import json, numpy as np, pathlib, shutil, sqlite3
import helper
from torch import nn
os.makedirs("out/run", exist_ok=False)
shutil.rmtree("old", ignore_errors=True)
assert not os.path.exists("old/best.pt")
shutil.move("kept.txt", "out/kept.txt")
shutil.copytree("tree", "out/tree")
log = open("log.txt", "w")
base = sqlite3.connect("runs.db")
base.execute("create table if not exists runs (loss)")
torch.save(m.state_dict(), helper.BEST)
for epoch in range(9):
    for x, y in loader:
        print(step(x, y).item(), file=log, flush=True)
        torch.save(m.state_dict(), "out/run/last.pt"); torch.load("out/run/last.pt")
        pathlib.Path("state.json").write_text(json.dumps({"a": 1}))
        os.replace("state.json", "log.json")
        assert json.loads(open("log.json").read()) == {"a": 1}
        np.save("features.npy", X.numpy()); assert np.load("features.npy").shape == (96, 8)
        np.memmap("data.bin", dtype=np.uint8, mode="r+")[:] = 9
        base.execute("insert into runs values (1)"); base.commit()
        pathlib.Path("tree/a.txt").unlink(missing_ok=True)
        os.chmod("script.sh", 0o700)
"""


def test_nothing_of_the_users_is_written_made_or_removed(checked, tmp_path):
    for name in ("log.txt", "old/best.pt", "kept.txt", "tree/a.txt", "data.bin", "script.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"mine: {name}")
    with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as base:
        base.execute("create table runs (loss)")
    elsewhere = tmp_path.parent / f"{tmp_path.name}-best.pt"
    (tmp_path / "helper.py").write_text(f"BEST = {str(elsewhere)!r}")
    (tmp_path / "train.py").write_text(HEAD + WRITERS)
    before = tree(tmp_path)

    report = checked(WRITERS, only="init")

    del before["train.py"], (after := tree(tmp_path))["train.py"]
    assert report.verdict == "ready", problems(report)
    assert after == before
    assert not elsewhere.exists()
    assert any("held back" in n for n in report.notes)


def test_a_first_step_that_raises_still_shows_data_and_config(checked):
    body = "m[2] = nn.Linear(16, 1); o.add_param_group({'params': m[2].parameters()})\n"
    report = checked(body + "for x, y in loader: step(x, y)\n", only="config,data,forward,edges")
    assert report.verdict == "do not start"
    runs = next(f for f in report.findings if f.check == "forward/runs")
    assert runs.subject == "train.py:12"
    assert "IndexError" in runs.value
    labels = next(f for f in report.findings if f.check == "data/labels")
    assert "label 1, but the model gives 1 classes" in labels.value
    assert [s.group for s in report.skipped] == ["forward", "edges"]
    assert report.first_things()[0].check == "data/labels"


def test_what_the_loop_enters_and_clips_is_seen(checked):
    report = checked("""
        scaler = torch.amp.GradScaler("cpu", growth_interval=1)
        for epoch in range(9):
            for x, y in loader:
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = ce(m(x), y)
                o.zero_grad(); scaler.scale(loss).backward(); scaler.unscale_(o)
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1e6)
                scaler.step(o); scaler.update()
        """, only="config,forward")  # fmt: skip
    found = {f.check: f.status for f in report.findings}
    assert found["config/grad-scaler"] == "pass"
    assert found["config/growth-interval"] == found["config/clip"] == "warn"
    assert report.count("fail") == 0, problems(report)


def test_a_silent_script_is_taken_for_hung(checked, monkeypatch):
    monkeypatch.setattr(capture, "_PATIENCE_S", 4.0)
    with pytest.raises(UsageError, match=r"train\.py gave no sign for 4 s before check had seen"):
        checked("import time; time.sleep(600)", only="init")


def test_a_later_step_that_raises_by_itself_is_reported(checked):
    report = checked("""
        loader = DataLoader(TensorDataset(X, Y), batch_size=16)
        for i, (x, y) in enumerate(loader):
            if i == 1: raise ValueError("corrupt image")
            step(x, y)
        """, only="forward,stability")  # fmt: skip
    (runs,) = (f for f in report.findings if f.check == "forward/runs")
    assert runs.status == "fail"
    assert runs.value.startswith("step 1 (from 0) raised ValueError: corrupt image at `if i == 1")
    assert report.skipped[1].reason == "step 1 (from 0) raised ValueError: corrupt image"


LOOP = """
def train():
    for epoch in range(99):
        for x, y in loader:
            step(x, y)
            {body}
"""


def test_a_script_that_asks_for_input_is_reported(checked):
    report = checked("name = input('which run? ')", only="init,forward")
    (runs,) = (f for f in report.findings if f.check == "forward/runs")
    assert runs.subject == "train.py:13"
    assert runs.value.startswith("before its first backward() the script raised EOFError")
    assert runs.action.startswith("it asks for input, and has none under check")


def test_a_loop_that_never_steps_is_reported(checked):
    with pytest.raises(UsageError, match=r"called backward\(\) 6 times and step\(\) of a torch"):
        checked("for x, y in loader: ce(m(x), y).backward()", only="init")


def test_an_end_without_a_word_is_reported_with_how_it_came(checked):
    with pytest.raises(UsageError, match=r"train\.py ended with exit code 3 before any training"):
        checked("os._exit(3)", only="init")
    with pytest.raises(UsageError, match=r"train\.py died: signal SIGABRT before check had seen"):
        checked("os.abort()", only="init")


def test_a_script_that_trains_in_a_thread_is_probed_there(checked):
    """Where a probe that raises ends the thread only, and the main thread waits for ever."""
    body = LOOP.format(body="assert bool((x != 0).any()), 'an empty image'") + (
        "import threading, time\n"
        "t = threading.Thread(target=train, daemon=True); t.start()\n"
        "while True: time.sleep(0.1)\n"
    )
    report = checked(body, only="edges")
    said = " ".join(f"{f.value} {f.why}" for f in report.findings if f.check == "edges/blank-batch")
    assert "AssertionError: an empty image" in said
    assert any(f.check == "edges/repeated" for f in report.findings)


@pytest.mark.parametrize("look", ["torch.isfinite(loss)", "not math.isnan(loss)"])
def test_a_loop_that_leaves_bad_losses_out_itself_does_not_hide_them(checked, look):
    report = checked(f"""
        import math
        def train(x, y):
            loss = ce(m(x), y) + torch.log(x.abs().sum(1)).mean()
            if {look} and loss.item() > -1e30:
                o.zero_grad(); loss.backward(); o.step()
        for epoch in range(99):
            for x, y in loader: train(x, y)
        """, only="edges")  # fmt: skip
    (blank,) = (f for f in report.findings if f.check == "edges/blank")
    assert blank.is_problem
    assert "without a backward" not in f"{blank.value} {blank.why}"


def test_batches_that_a_cycle_has_kept_are_replaced_from_the_start_of_a_second_run(checked):
    report = checked("""
        import itertools
        two = DataLoader(TensorDataset(X, Y), batch_size=48)
        for i, (x, y) in zip(range(10**6), itertools.cycle(two)): step(x, y)
        """, only="edges")  # fmt: skip
    assert report.verdict == "ready", problems(report)
    assert any("the script was started 2 times" in n for n in report.notes)


def test_batches_in_a_list_of_the_scripts_are_changed_where_the_model_is_called(checked):
    report = checked("""
        batches = list(loader)
        for epoch in range(99):
            for x, y in batches: step(x, y)
        """, only="edges")  # fmt: skip
    assert report.count("fail") == 0, problems(report)
    assert any("no batches from a DataLoader" in n for n in report.notes)


def test_a_validation_before_the_training_is_not_taken_for_it(checked):
    report = checked("""
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=24):
            with torch.no_grad(): ce(m(x), y)
        for epoch in range(99):
            for x, y in loader: step(x, y)
        """, only="data,edges")  # fmt: skip
    assert report.verdict == "ready", problems(report)


def test_a_validation_that_stops_early_before_the_training_is_not_taken_for_it(checked):
    """As Lightning's sanity check does."""
    report = checked(
        """
        others = DataLoader(TensorDataset(X, Y), batch_size=4)
        with torch.no_grad():
            for i, (x, y) in enumerate(others):
                ce(m(x), y)
                if i == 1:
                    break
        for epoch in range(20):
            for x, y in loader: step(x, y)
        """,
        only="forward",
    )
    assert report.verdict == "ready", problems(report)


def test_the_script_finds_its_loaders_models_and_module_as_they_are(checked):
    """Iterators, whole models in pickles, field types of dataclasses, checkpoints of layers."""
    report = checked("""
        import argparse, copy, dataclasses, pickle
        from torch.utils.checkpoint import checkpoint
        @dataclasses.dataclass
        class Args:
            lr: float = 0.1
        for field in dataclasses.fields(Args):
            argparse.ArgumentParser().add_argument("--" + field.name, type=field.type)
        assert os.path.isabs(__file__)
        m.requires_grad_()
        class Whole(nn.Module):
            def __init__(self): super().__init__(); self.inner = m
            def forward(self, x): return checkpoint(self.inner, x, use_reentrant=True)
        whole = Whole()
        for epoch in range(99):
            it = iter(loader)
            assert type(it).__name__ == "_SingleProcessDataLoaderIter" and len(it) == 6
            for x, y in it:
                loss = ce(whole(x.requires_grad_()), y)
                o.zero_grad(); loss.backward(); o.step()
                pickle.dumps(whole); copy.deepcopy(whole)
        """, only="forward,edges")  # fmt: skip
    assert report.count("fail") == 0, problems(report)
    assert not report.skipped


def test_steps_in_a_row_are_those_that_fit_one_run_of_a_short_loop(checked):
    """Steps of two starts put together would hide that this rate diverges."""
    report = checked("""
        X = torch.linalg.qr(torch.randn(96, 8))[0] * 9.8
        m = nn.Linear(8, 1)
        o = torch.optim.SGD(m.parameters(), lr=1.3)
        ce = lambda out, y: ((out[:, 0] - y) ** 2).mean()
        n, whole = 0, DataLoader(TensorDataset(X, Y.float()), batch_size=96)
        while True:
            for x, y in whole:
                step(x, y); n += 1
                if n == 10: sys.exit()
        """, only="stability")  # fmt: skip
    (rate,) = [f for f in report.of_group("stability") if f.check == "stability/lr"]
    assert rate.status == "fail"
    assert rate.value.startswith("7 steps, loss: x1 ")


def test_a_loss_with_a_state_of_its_own_is_put_back_after_a_batch_that_corrupts_it(checked):
    """And that batch, which holds a NaN, is no matter of the learning rate."""
    report = checked(
        """
        class Centered(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("center", torch.zeros(2))
            def forward(self, out, y):
                self.center.lerp_(out.detach().mean(0), 0.1)
                return ce(out - self.center, y)
        X[70] = float("nan")
        loader = DataLoader(TensorDataset(X, Y), batch_size=16)
        loss_of = Centered()
        for epoch in range(30):
            for x, y in loader:
                loss = loss_of(m(x), y); o.zero_grad(); loss.backward(); o.step()
        """,
        only="edges",
    )
    (found,) = [f for f in report.findings if f.is_problem]
    assert (found.check, found.status) == ("edges/ahead", "fail"), problems(report)
    assert "batch 4 of its own, which holds NaN or Inf" in found.value
    assert found.action.startswith("mend or leave out its samples")
