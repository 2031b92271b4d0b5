"""One process that has imported torch for all checks of scripts in a run of the tests."""

import atexit
import subprocess

from stayfinite.preflight.capture import starter

_started: list[subprocess.Popen] = []
_new_forker = starter._forker


def share(monkeypatch) -> None:
    """A check comes with a forking process of its own, which imports for seconds: here all have the same."""
    monkeypatch.setattr(starter, "_forker", _the_forker)
    monkeypatch.setattr(starter.Starter, "close", lambda self: None)


def _the_forker(environ) -> subprocess.Popen:
    if not _started or _started[-1].poll() is not None:
        _started.append(_new_forker(environ))
        atexit.register(_end, _started[-1])
    return _started[-1]


def _end(forker: subprocess.Popen) -> None:
    forker.stdin.close()
    forker.stdout.close()
    forker.wait()
