"""Is it set up well here: `doctor`, `--version --verbose`, completion."""

import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from stayfinite import __version__
from stayfinite.cli.app import app
from stayfinite.demo import doctor_cases


def called(*args):
    return CliRunner().invoke(app, list(args))


def doctor(*args):
    """In a process of its own: a module that was imported while a guard was open keeps its names."""
    command = [sys.executable, "-m", "stayfinite", "doctor", *args]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_doctor_finds_every_way_of_replay_working():
    done = doctor("--no-frameworks")
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line[6:30].strip() for line in done.stdout.splitlines()]
    assert names == [
        "patches",
        "replay by guard.step",
        "replay by the loop",
        "replay by a closure",
        "nothing left behind",
    ]
    assert all(line.startswith("ok  ") for line in done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_doctor_tries_the_frameworks_that_are_installed():
    pytest.importorskip("lightning")
    pytest.importorskip("transformers")
    done = doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok    replay by lightning" in done.stdout
    assert "ok    replay by transformers" in done.stdout


def test_what_does_not_work_is_named_and_the_exit_code_is_1(monkeypatch):
    healthy = torch.ones(16, 3), torch.ones(16)
    monkeypatch.setattr(doctor_cases, "_samples", lambda: healthy)
    done = called("doctor", "--no-frameworks")
    assert done.exit_code == 1
    assert (
        "FAIL  replay by the loop        RuntimeError: one incident was to be found, and 0 were"
        in (done.output)
    )


def test_the_version_in_short_and_in_full():
    assert called("--version").output == f"stayfinite {__version__}\n"
    rows = dict(
        line.split(maxsplit=1) for line in called("--version", "--verbose").output.splitlines()
    )
    assert rows["stayfinite"] == __version__
    assert rows["torch"] == torch.__version__
    assert called("--verbose", "--version").output == called("--version", "--verbose").output
    assert os.uname().nodename not in rows.values()


def test_verbose_alone_is_wrong_usage():
    done = called("--verbose")
    assert done.exit_code == 2
    assert "--verbose goes with --version" in done.output


@pytest.mark.parametrize(
    ("words", "expected"), [("stayfinite la", "ladder"), ("stayfinite run --repl", "--replay")]
)
def test_a_shell_completes_commands_and_options(words, expected):
    env = {**os.environ, "_STAYFINITE_COMPLETE": "complete_bash", "COMP_WORDS": words}
    env["COMP_CWORD"] = str(len(words.split()) - 1)
    done = subprocess.run(
        [sys.executable, "-m", "stayfinite"], capture_output=True, text=True, env=env
    )
    assert done.stdout.split() == [expected]
