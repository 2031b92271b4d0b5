"""The command as a user runs it, on scripts that really fail."""

import json
import pathlib
import shutil

import pytest
from tests.ladder.helpers import ladder, tree
from tests.launch import forked

from stayfinite.ladder import LadderReport

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
KNOB = "stayfinite:clip=1"
pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    shutil.copytree(SCRIPTS, folder)
    return folder


def test_a_config_key_survives_and_nothing_on_disk_is_changed(home):
    (home / "out").mkdir()
    (home / "out" / "last.pt").write_text("precious")
    (home / "out" / "log.txt").write_text("precious\n")
    before = tree(home)
    tries = ("use_amp=false", "optimizer.lr=0.1x", "skip_bad_samples")
    done = ladder(home, "--json", *(w for t in tries for w in ("--try", t)), "--", "amp.py")
    assert done.code == 0, done.err
    assert tree(home) == before
    report = LadderReport.from_json(done.out)
    base = report.baseline
    line = (home / "amp.py").read_text().splitlines()[base.line - 1]
    assert "h @ h.T" in line
    assert (report.failing_step, report.goal, base.op) == (9, 14, "aten.mm")
    assert (base.cause, base.has_autocast, base.has_loader) == (
        "low_precision_overflow",
        True,
        True,
    )
    assert [(r.label, r.status, r.step) for r in report.rungs] == [
        ("use_amp=false", "survived", 14),
        ("optimizer.lr=0.1x", "failed", 9),
        ("skip_bad_samples", "failed", 9),
    ]
    amp, lr, _ = (r.changes[0] for r in report.rungs)
    assert (amp.kind, amp.file, amp.after) == ("config", str(home / "amp.yaml"), "false")
    assert (lr.before, lr.after) == ("1e-3", "0.0001")
    assert [c.label for c in report.smallest] == ["use_amp=false"]
    assert report.sets == ()
    assert "use_amp=false: survived to step 14" in done.err


def test_two_changes_that_only_help_together_in_a_script_without_a_loader(home):
    before = tree(home)
    done = ladder(home, "--try", "Optim.lr=0.001x", "--try", "env:BOOST=1", "--", "plain.py")
    assert done.code == 0, done.err
    assert tree(home) == before
    assert "settings.py: 5 -> 0.005" in done.out
    assert "failed at step 6: aten.pow, plain.py:" in done.out
    assert "diverging, still finite at step 11: the loss has grown from 11.27 to 2.4" in done.out
    assert (
        "no single change survives; the smallest set that does: Optim.lr=0.001x + env:BOOST=1\n"
        "  to keep it: Optim.lr = 0.005 in settings.py (was 5)\n"
        "  to keep it: BOOST=1 in the environment\n"
    ) in done.out


def test_after_an_incident_with_flags_and_our_own_knob(home, tmp_path):
    words = ["run", "--run-dir", str(tmp_path / "run"), "amp.py", "--epochs", "1"]
    run = forked(["-m", "stayfinite", *words], home)
    assert run.code == 0, run.err
    shutil.rmtree(home / "out")
    (incident,) = (tmp_path / "run" / "incidents").iterdir()
    before = tree(home)
    reported = ladder(home, "--after-incident", str(incident), "--try", "width=4")
    assert reported.code == 2 and "the incident says that this was run: " in reported.err
    done = ladder(
        home, "--after-incident", str(incident), "--try", "stayfinite:autocast=off", "--try",
        "width=4", "--margin", "1", "--run-dir", str(tmp_path / "kept"), "--json",
        "--", "amp.py", "--epochs", "1",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert tree(home) == before
    report = LadderReport.from_json(done.out)
    assert report.target.endswith("amp.py --epochs 1")
    assert (report.failing_step, report.goal, report.baseline.status) == (9, 10, "failed")
    assert [(r.changes[0].kind, r.status) for r in report.rungs] == [
        ("knob", "survived"),
        ("flag", "failed"),
    ]
    spec = json.loads((tmp_path / "kept" / "03" / "spec.json").read_text())
    assert spec["args"] == ["--epochs", "1", "--width", "4"]
    assert "0 8 " in (tmp_path / "kept" / "03" / "stdout.txt").read_text()


def test_a_healthy_module_has_nothing_to_get_past(home):
    done = ladder(home, "--until-step", "3", "--try", KNOB, "-m", "amp", "--epochs", "1")
    assert done.code == 0, done.err
    assert "unchanged: survived to step 3, loss " in done.out
    assert "the unchanged run does not fail (to step 3): nothing to get past" in done.out
    assert KNOB not in done.out
    assert "looking at" not in done.err  # a knob of ours needs no survey


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--", "none.py"], "can't open the script 'none.py': no such file"),
        (["--", "plane.py"], "can't open the script 'plane.py': no such file\ntry: plain.py"),
        (["-m", "amp.py"], "-m takes a module's name, got the file 'amp.py'"),
        ([], "give the script to run: stayfinite ladder --try lr=0.1x -- train.py [ARGS]..."),
        (["--jobs", "0", "--", "amp.py"], "`jobs` must be at least 1, got 0"),
        (["--after-incident", "amp.py", "--", "amp.py"], "amp.py is no incident: "),
        (
            ["--try", "use_ampp=false", "--", "amp.py"],
            "the script has no 'use_ampp'\n  looked at: 5 flags; config files: amp.yaml, amp.py;",
        ),
        (
            ["--try", "width=5", "--", "amp.py"],
            "--try width=5: the script rejects it: argument --width: invalid choice: 5 (choose from",
        ),
        (
            ["--try", "lr=0.1x", "--", "plain.py", "--crash"],
            "plain.py ends with an error before any training:\n",
        ),
        (
            ["--try", "SEED=1", "--", "settings.py"],
            "settings.py ended before any training: no batch, no backward",
        ),
        (
            ["--timeout", "0.01", "--try", "lr=0.1x", "--", "amp.py"],
            "amp.py came to no training within 0 s",
        ),
    ],
)
def test_wrong_usage_says_what_was_found_and_what_was_expected(home, args, said):
    before = tree(home)
    done = ladder(home, *args)
    assert done.code == 2, (done.out, done.err)
    assert f"stayfinite ladder: {said}" in done.err or said in done.err
    assert done.out == ""
    assert tree(home) == before
