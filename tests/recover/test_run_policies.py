"""Policies, the gate and the resume check under `stayfinite run`, the script unchanged."""

import json
import sys
import textwrap

import pytest
import torch

from stayfinite.cli import main

TRAIN = """
    import sys, torch
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    for row in map(int, sys.argv[1].split(",")):
        x[row] = float("nan")
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, (batch,) in enumerate(DataLoader(TensorDataset(x), batch_size=4)):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
    print("done", bool(torch.isfinite(model.weight).all()))
"""
RESUME = """
    import sys, torch
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved = torch.load(sys.argv[1])
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    print("resumed")
"""
SAVE = """
    import os, sys, torch
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def save():
        torch.save({"model": model.state_dict()}, "last.tmp")
        os.replace("last.tmp", "last.pt")
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).pow(2).mean().backward()
        optimizer.step()
        save()
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    save()
    print("done")
"""


class Ended:
    """How a command ended."""

    def __init__(self, returncode, captured):
        self.returncode = returncode
        self.stdout, self.stderr = captured


@pytest.fixture
def run(tmp_path, monkeypatch, capsys, as_script):
    """`stayfinite run` in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def start(source, *args, options=()):
        (tmp_path / "train.py").write_text(textwrap.dedent(source))
        words = ["run", "--no-diagnose", "--run-dir", "run", *options, "train.py", *args]
        monkeypatch.setattr(sys, "argv", ["stayfinite", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code or 0, capsys.readouterr())

    return start


def ledger(tmp_path):
    return [
        json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
    ]


@pytest.mark.parametrize("policy", ["skip", "rollback", "sanitize", "skip:1,rollback:1"])
def test_a_script_goes_on_under_each_policy(policy, tmp_path, run):
    out = run(TRAIN, "22", options=["--policy", policy])
    assert (out.returncode, out.stdout.strip()) == (0, "done True"), out.stderr
    entries = ledger(tmp_path)
    kind = {"sanitize": "sanitized"}.get(policy, "skipped")
    bad = next(e for e in entries if e["kind"] == kind)
    assert bad["step"] == 5
    assert bad["indices"] == ([22] if policy == "sanitize" else [20, 21, 22, 23])


def test_a_script_is_stopped_when_the_ladder_ends(tmp_path, run):
    out = run(TRAIN, "20,24,28", options=["--policy", "skip:1,rollback:1"])
    assert out.returncode == 1 and "done" not in out.stdout
    assert "the policy skip:1,rollback:1 has nothing left to try" in out.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--policy", "rollbak"], "unknown policy 'rollbak'; choose one of: raise, skip, rollback"),
        (["--policy", "skip:x"], "cannot read 'x' in the policy 'skip:x'"),
        (["--on-spike", "panic"], "unknown `on_spike` 'panic'; choose one of: ignore, warn"),
    ],
)
def test_a_wrong_policy_is_reported(options, words, tmp_path, run):
    out = run(TRAIN, "3", options=options)
    shown = " ".join(out.stderr.replace("│", " ").split())
    assert out.returncode == 2
    assert words in shown


def checkpoint(path, value, lr=0.1):
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.fill_(value)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def test_a_bad_checkpoint_is_refused_under_run(tmp_path, run):
    checkpoint(tmp_path / "step_1.pt", 0.5)
    checkpoint(tmp_path / "step_2.pt", float("nan"))
    out = run(RESUME, "step_2.pt")
    assert out.returncode == 1 and "resumed" not in out.stdout
    assert "step_2.pt must not be resumed from: not finite are weight" in out.stderr
    assert "last good: step_1.pt" in out.stderr or f"last good: {tmp_path}/step_1.pt" in out.stderr
    assert "Traceback" not in out.stderr
    lists = [line for line in out.stderr.splitlines() if line.startswith("  - weight (")]
    assert len(lists) == 1, "the list of bad tensors stands in the report once"
    out = run(RESUME, "step_2.pt", options=["--no-resume-check"])
    assert "resumed" in out.stdout
    out = run(RESUME, "step_1.pt")
    assert (out.returncode, out.stdout) == (0, "resumed\n")


def test_a_bad_checkpoint_that_is_cast_first_is_refused_under_run(tmp_path, run):
    checkpoint(tmp_path / "step_1.pt", 0.5)
    checkpoint(tmp_path / "step_2.pt", float("inf"))
    script = RESUME.replace(
        'saved["model"])', '{k: v.float().clone() for k, v in saved["model"].items()})'
    )
    assert script != RESUME
    out = run(script, "step_2.pt")
    assert out.returncode == 1 and "resumed" not in out.stdout
    assert "step_2.pt must not be resumed from: not finite are weight (3 +Inf of 3" in out.stderr
    assert run(script, "step_1.pt").stdout == "resumed\n"


def test_a_rate_that_comes_back_is_reported_under_run(tmp_path, run):
    checkpoint(tmp_path / "a.pt", 0.5, lr=0.4)
    out = run(RESUME, "a.pt")
    assert (out.returncode, out.stdout) == (0, "resumed\n")
    assert "warning: the script says lr 0.1; the optimizer in the file has lr 0.4" in out.stderr


def test_a_bad_save_goes_beside_the_good_one_under_run(tmp_path, run):
    out = run(SAVE)
    assert (out.returncode, out.stdout) == (0, "done\n"), out.stderr
    assert torch.isfinite(torch.load(tmp_path / "last.pt")["model"]["weight"]).all()
    assert torch.isnan(torch.load(tmp_path / "last.nonfinite.pt")["model"]["weight"]).all()
    assert "was held back" in out.stderr
    journal = (tmp_path / "run" / "journal.jsonl").read_text()
    assert '"status":"refused"' in journal and '"status":"good"' in journal


EXPORT = """
    import os, sys, torch
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        model.weight[0, 1] = 9.1e4
    def save(path):
        torch.save({k: v.half() for k, v in model.state_dict().items()}, path)
    if sys.argv[1] == "renamed":
        save("model.tmp")
        os.replace("model.tmp", "model.pt")
    else:
        save("model.pt")
    saved = torch.load("model.pt")
    print("read", saved["weight"].isinf().sum().item())
    model.load_state_dict({k: v.float() for k, v in saved.items()})
    print("restored")
"""


@pytest.mark.parametrize("how", ["directly", "renamed"])
def test_a_script_may_read_back_what_was_held_back(how, run):
    out = run(EXPORT, how)
    assert (out.returncode, out.stdout) == (1, "read 1\n")
    reported = [line for line in out.stderr.splitlines() if line.endswith(" instead")]
    assert reported == [
        "stayfinite: model.pt was held back because it is not finite, and nothing lies there; "
        "reading model.nonfinite.pt instead"
    ]
    assert (
        "model.nonfinite.pt must not be resumed from: not finite are weight (1 +Inf" in out.stderr
    )
    assert "Traceback" not in out.stderr
    out = run(EXPORT, how, options=["--no-resume-check"])
    assert (out.returncode, out.stdout) == (0, "read 1\nrestored\n")


def test_raise_ends_the_script_at_the_bad_step_and_names_it(run):
    out = run(TRAIN, "22", options=["--policy", "raise"])
    assert (out.returncode, out.stdout) == (1, "")
    assert "step 5 (epoch 0; in the script step = 5): the loss is nan" in out.stderr


def test_parts_are_refused_under_a_launcher_of_several_ranks(tmp_path, monkeypatch, capsys):
    """Each rank would leave out parts of its own, and their weights would part."""
    (tmp_path / "train.py").write_text("print('trained')")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(
        sys, "argv", ["stayfinite", "run", "--policy", "parts", str(tmp_path / "train.py")]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    out = capsys.readouterr()
    said = " ".join((out.out + out.err).replace("│", " ").split())
    assert "policy 'parts' is for a training of one rank, got 2 ranks" in said
    assert "trained" not in out.out
