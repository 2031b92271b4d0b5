"""The permissions of a replay, per thread; every patch of the sandbox checks `here` first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .private_warnings import PrivateWarnings
from .replay_files import ReplayFiles

__all__ = ["Abandoned", "Box", "Refused", "Report", "Rule", "here", "only_here", "outside"]

_MOST_REFUSALS = 1000


class Refused(RuntimeError):
    """Raised when a replay attempts a side effect."""


class Abandoned(BaseException):
    """A replay that retries a refused action in an endless loop is ended after this many refusals."""


@dataclass
class Report:
    """The refused actions of a replay, in short texts with their counts.

    >>> report = Report(refused={"a subprocess (curl …)": 1, "a network connection (host)": 3})
    >>> report.text()
    'not done during the replay: a subprocess (curl …), a network connection (host) (3 times)'
    """

    refused: dict[str, int] = field(default_factory=dict)
    redirected: list[str] = field(default_factory=list)
    """The user's paths that were redirected."""

    def add(self, what: str) -> None:
        self.refused[what] = self.refused.get(what, 0) + 1

    def text(self) -> str:
        """A line for an incident, empty if there is nothing to report."""
        if not self.refused:
            return ""
        parts = [w if n == 1 else f"{w} ({n} times)" for w, n in self.refused.items()]
        return f"not done during the replay: {', '.join(parts)}"


class Box:
    """The replay of one thread: the folder of its files, refused actions, and what has to be restored."""

    def __init__(self, files: ReplayFiles, warnings: PrivateWarnings, report: Report) -> None:
        self.thread = threading.get_ident()
        self.files = files
        self.warnings = warnings
        self.report = report
        self.own_fds: set[int] = set()
        """Descriptors that the replay itself has opened."""
        self.own_queues: set[int] = set()
        self.environ: dict[str, str | None] = {}
        """The previous values of environment variables that the replay has set."""
        self._num_waits = 0

    def refuse(self, what: str) -> Any:
        """Raise `Refused`."""
        self.report.add(what)
        self.count_wait()
        raise Refused(f"{what} is refused during a replay, which computes and does nothing else")

    def count_wait(self) -> None:
        """End a loop that retries until it succeeds."""
        self._num_waits += 1
        if self._num_waits > _MOST_REFUSALS:
            raise Abandoned


class _Here(threading.local):
    box: Box | None = None


here = _Here()
"""`here.box` is the replay of the calling thread, None in other threads."""

Act = Callable[[Box, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def only_here(act: Act) -> Callable[[Callable[..., Any], Any], Callable[..., Any]]:
    """A wrapper that calls `act` in a thread that replays, and the original in all others."""

    def make(original: Callable[..., Any], subscribers: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            box = here.box
            if box is None:
                return original(*args, **kwargs)
            return act(box, original, args, kwargs)

        return call

    return make


def outside(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call our own code as if there were no replay."""
    box, here.box = here.box, None
    try:
        return function(*args, **kwargs)
    finally:
        here.box = box


@dataclass(frozen=True)
class Rule:
    """One patch of the sandbox: `path` within a module, if that is imported and has it."""

    module: str
    path: str
    make: Callable[[Callable[..., Any], Any], Callable[..., Any]]
    reason: str
    members: tuple[set[Any], ...] = ()
