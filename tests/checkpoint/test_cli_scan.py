"""The commands: what they print, what they return, and that they never show a traceback."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
import typer
from tests.checkpoint.hostile import call, torch_zip
from tests.checkpoint.test_rates import save_one_cycle
from tests.checkpoint.test_scan import make_run
from typer.testing import CliRunner

from stayfinite.cli import scan as cli


@pytest.fixture
def app():
    made = typer.Typer()
    cli.register(made)
    return made


def run(app, *args, text=None):
    result = CliRunner().invoke(app, [str(a) for a in args], input=text)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def test_a_run_in_words(app, tmp_path):
    folder = make_run(tmp_path / "run")
    result = run(app, "scan", folder)
    assert result.exit_code == 1
    lines = [
        re.sub(r" +", " ", line.replace(str(tmp_path), "")).rstrip()
        for line in result.output.splitlines()
    ]
    assert any(line.startswith("healthy /run/step_100.pt (torch zip, ") for line in lines)
    assert any(
        "nonfinite_tensor: model.2.weight [weights]: 1 NaN of 16 values, first at [1, 3]; the rest lies in"
        in line
        for line in lines
    )
    assert "timeline of /run" in lines
    assert " broke at: /run/step_400.pt" in lines
    assert " last good: /run/step_300.pt" in lines
    assert " first broken there (fewest bad values first): model.2.weight" in lines
    assert lines[-2].startswith("5 checkpoints: 3 healthy, 2 corrupt (")
    assert lines[-1] == "more: stayfinite explain nonfinite_tensor"


def test_exit_codes(app, tmp_path):
    torch.save({"w": torch.rand(3)}, tmp_path / "good.pt")
    torch.save({"w": torch.zeros(8, 8)}, tmp_path / "odd.pt")
    torch.save({"w": torch.tensor([float("inf")])}, tmp_path / "bad.pt")
    (tmp_path / "evil.pt").write_bytes(torch_zip(call("os", "system", "true")))
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04")
    assert run(app, "scan", tmp_path / "good.pt").exit_code == 0
    assert run(app, "scan", tmp_path / "odd.pt").exit_code == 0
    assert run(app, "scan", "--strict", tmp_path / "odd.pt").exit_code == 1
    for name in ("bad", "evil", "cut"):
        assert run(app, "scan", tmp_path / f"{name}.pt").exit_code == 1
    missing = run(app, "scan", tmp_path / "none.pt")
    assert missing.exit_code == 2 and "error: no such file or folder:" in missing.output
    assert run(app, "scan").exit_code == 2
    assert run(app, "scan", tmp_path, "--lr", "1", "--config", "x").exit_code == 2
    assert run(app, "scan", tmp_path, "--lr", "-1").exit_code == 2
    assert run(app, "scan", tmp_path, "--jobs", "0").exit_code == 2


def test_hostile_in_words(app, tmp_path):
    (tmp_path / "evil.pt").write_bytes(torch_zip(call("os", "system", "true")))
    out = run(app, "scan", tmp_path / "evil.pt").output
    assert "hostile_pickle: os.system: the module `os` can run code or reach outside" in out
    assert "try: do not load it with pickle" in out


def test_json(app, tmp_path):
    folder = make_run(tmp_path / "run")
    result = run(app, "scan", folder, "--json")
    data = json.loads(result.output)
    assert data["kind"] == "stayfinite.scan" and data["verdict"] == "corrupt"
    assert data["timelines"][0]["last_good"].endswith("step_300.pt")
    stats = data["checkpoints"][3]["files"][0]["findings"][0]["stats"]
    assert stats["num_nan"] == 1 and stats["first_bad"] == [1, 3]


def test_the_learning_rate(app, tmp_path):
    save_one_cycle(tmp_path / "t.pt")
    (tmp_path / "config.py").write_text("LEARNING_RATE = 1e-4\n")
    result = run(app, "scan", tmp_path / "t.pt", "--config", tmp_path / "config.py", "--strict")
    assert result.exit_code == 1 and "lr_mismatch" in result.output
    assert "A resume will train with" in result.output


def test_quarantine_asks_first(app, tmp_path):
    folder = make_run(tmp_path / "run")
    result = run(app, "scan", folder, "--quarantine", tmp_path / "q", text="n\n")
    assert "Move 2?" in result.output and "nothing was moved" in result.output
    assert (folder / "step_400.pt").exists() and not (tmp_path / "q").exists()
    result = run(app, "scan", folder, "--quarantine", tmp_path / "q", "--yes")
    assert result.exit_code == 1 and not (folder / "step_400.pt").exists()
    log = re.search(r"--undo (\S+)", result.output.replace("\n", ""))[1]
    result = run(app, "scan", "--undo", log)
    assert result.exit_code == 0 and "moved 2 back" in result.output
    assert (folder / "step_400.pt").exists()
    assert "nothing to move back" in run(app, "scan", "--undo", log).output


def test_diff(app, tmp_path):
    folder = make_run(tmp_path / "run")
    result = run(app, "diff", folder / "step_100.pt", folder / "step_200.pt")
    assert result.exit_code == 1 and "weights: 1 of 3 layers changed" in result.output
    assert run(app, "diff", folder / "step_100.pt", folder / "step_100.pt").exit_code == 0
    assert json.loads(
        run(app, "diff", folder / "step_100.pt", folder / "step_200.pt", "--json").output
    )
    assert run(app, "diff", folder / "step_100.pt", folder / "none.pt").exit_code == 2


def test_verbose_lists_every_tensor(app, tmp_path):
    torch.save({"w": torch.ones(2, 3), "tied": torch.ones(2)}, tmp_path / "t.pt")
    out = run(app, "scan", "-v", tmp_path / "t.pt").output
    assert "w  float32 [2, 3]  1 … 1  [weights]" in out


def test_help_does_not_import_torch():
    code = (
        "import sys, typer; from stayfinite.cli import scan; app = typer.Typer(); scan.register(app)\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules, 'rich.progress' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "False False"


@pytest.mark.slow
def test_an_interrupt_during_the_scan(tmp_path):
    """Control-C while files are being scanned: what is known, code 130, nothing moved."""
    for i in range(40):
        torch.save({"w": torch.full((1000,), float("nan"))}, tmp_path / f"{i}.pt")
    code = (
        "import time, typer; from stayfinite.cli import scan; app = typer.Typer(); scan.register(app)\n"
        "from stayfinite.checkpoint import scanner\n"
        "real = scanner.scan_file\n"
        "calls = []\n"
        "def large(*a, **k):\n"
        "    calls.append(a)\n"
        "    if len(calls) > 10: print('at work', flush=True)\n"  # all files have been handed out
        "    time.sleep(0.2)\n"
        "    return real(*a, **k)\n"
        "scanner.scan_file = large\n"
        f"app(['scan', {str(tmp_path)!r}, '--full', '--quarantine', {str(tmp_path / 'q')!r}, '--yes'])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background of a shell ignores interrupts, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while process.stdout.readline() != "at work\n":
        assert process.poll() is None, process.stderr.read()
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted" in out and ("not looked at" in out or "was finished" in out)
    assert len(list(tmp_path.glob("*.pt"))) == 40


def test_the_bar_shows_speed(tmp_path, monkeypatch):
    """With a terminal on stderr there is a bar with bytes and a speed."""
    import io

    import rich.console

    from stayfinite.checkpoint import Progress

    shown = io.StringIO()
    real = rich.console.Console
    monkeypatch.setattr(
        rich.console, "Console", lambda **_: real(file=shown, force_terminal=True, width=100)
    )
    progress = Progress(total_bytes=2_000_000_000, num_files=3)
    with cli._bar(progress):
        for i in range(5):
            progress.done_bytes, progress.done_files = i * 400_000_000, i // 2
            time.sleep(0.15)
    assert "GB/s" in shown.getvalue() and "scanning 1/3" in shown.getvalue()
