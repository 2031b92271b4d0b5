"""Notebooks: `%load_ext stayfinite`, then `%%stayfinite` at the top of a cell that trains."""

from __future__ import annotations

import shlex
from typing import Any

from ..errors import UsageError
from ..records import Incident
from ..saying import say
from .session import Session

__all__ = ["load_ipython_extension", "unload_ipython_extension"]

_USAGE = "%%stayfinite [--policy skip|rollback|raise] [--run-dir DIR] [--no-diagnose] [--replay auto|full|off]"


def load_ipython_extension(ipython: Any) -> None:
    """Called by `%load_ext stayfinite`."""

    def stayfinite(line: str, cell: str) -> None:
        """Run the cell under protection: a bad step is left out, explained and shown."""
        run_cell(ipython, line, cell)

    ipython.register_magic_function(stayfinite, "cell", "stayfinite")


def unload_ipython_extension(ipython: Any) -> None:
    """Called by `%unload_ext stayfinite`."""
    ipython.magics_manager.magics["cell"].pop("stayfinite", None)


def run_cell(ipython: Any, line: str, cell: str) -> None:
    """Run the cell; the protection always ends with it."""
    session = _session(line)
    session.open("cell")
    session.adopt(ipython.user_ns)
    error: BaseException | None = None
    # Lines count from the top of the cell; another magic has to stay the first of its lines.
    body = cell if cell.startswith("%%") else f"# %%stayfinite\n{cell}"
    try:
        # Shown and raised as in any cell: this one's output, its last value, its traceback.
        error = ipython.run_cell(body, store_history=False).error_in_exec
    except BaseException as e:
        error = e
        raise
    finally:
        session.close(error)
    count = len(session.incidents)
    if count:
        say(f"stayfinite: {count} incident{'s' if count > 1 else ''} in this cell")


def _session(line: str) -> Session:
    words = iter(shlex.split(line))
    policy, run_dir = "skip", None
    settings: dict[str, Any] = {}
    for word in words:
        if word == "--policy":
            policy = next(words, "")
        elif word == "--run-dir":
            run_dir = next(words, "")
        elif word == "--no-diagnose":
            settings["diagnose"] = False
        elif word == "--replay":
            settings["replay"] = next(words, "")
        else:
            raise UsageError(f"unknown option {word!r}; usage: {_USAGE}")
    return Session(policy, run_dir, settings, say=_Shown())


class _Shown:
    """Print an incident in full once, and its repetitions in one line."""

    def __init__(self) -> None:
        self._num_repeats = 0

    def __call__(self, incident: Incident) -> None:
        from IPython.display import display

        if incident.same_as is None:
            display(incident)  # type: ignore[no-untyped-call]
            return
        self._num_repeats += 1
        count = self._num_repeats
        if count <= 3 or count & (count - 1) == 0:
            place = f"as at {incident.same_as}"
            say(f"stayfinite: step {incident.event.step}: again, {place}")
