"""`kill -9` at a random moment of writing: there is always a whole, finite last good state."""

import os
import subprocess
import sys

import pytest

from stayfinite.recover import atomic
from stayfinite.recover.atomic import atomic_path

if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)


def killed(kind, count, folder):
    """(deaths, after how many the file was broken, how many were in the middle of a write)."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.recover.kill", kind, str(count), "0", str(folder)]
    out = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    assert out.returncode == 0, out.stderr
    return tuple(map(int, out.stdout.split()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["snapshot", "checkpoint"])
def test_two_hundred_deaths_leave_a_good_state(kind, tmp_path):
    deaths, broken, interrupted = killed(kind, 110, tmp_path)
    assert (deaths, broken) == (110, 0)
    assert interrupted > 10, "hardly any death was in the middle of a write"


@pytest.mark.slow
def test_the_plain_way_breaks(tmp_path):
    _, broken, _ = killed("plain", 10, tmp_path)
    assert broken > 0


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_path(path) as part:
        part.write_bytes(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_what_a_killed_process_left_long_ago_is_cleared(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    old, young = tmp_path / ".stayfinite-part-a.bin-x", tmp_path / ".stayfinite-part-a.bin-y"
    other = tmp_path / ".stayfinite-part-b.bin-x"
    for folder in (old, young, other):
        folder.mkdir()
    for folder in (old, other):
        os.utime(folder, (1, 1))
    with atomic_path(path) as part:
        part.write_bytes(b"new")
    assert sorted(os.listdir(tmp_path)) == sorted([other.name, young.name, "a.bin"])
    assert atomic._STALE_SECONDS >= 600
