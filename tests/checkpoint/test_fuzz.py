"""A share of the fuzzing; `python -m tests.checkpoint.fuzz --count 50000` does the whole."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def fuzz(count, seed):
    """In a process of its own: an audit hook cannot be taken away again."""
    command = [
        sys.executable,
        "-m",
        "tests.checkpoint.fuzz",
        "--count",
        str(count),
        "--seed",
        str(seed),
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)


def test_a_few_hundred_mutants():
    done = fuzz(200, 7)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "200 mutants" in done.stdout


@pytest.mark.slow
def test_two_thousand_mutants():
    done = fuzz(2000, 11)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_watch_notices_an_escape():
    """The audit hook is worth something only if it sees what it is there for."""
    code = (
        "from tests.checkpoint.fuzz import Watch\n"
        "import os, tempfile; tempfile.gettempdir()\n"
        "watch = Watch(); watch.is_on = True\n"
        "os.system('true'); open(os.devnull, 'w').close(); tempfile.TemporaryFile().close(); print(len(watch.seen))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "2", done.stdout + done.stderr
