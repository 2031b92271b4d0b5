"""One test under `pytest --stayfinite`."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ..errors import NonFiniteError
from ..records import Incident
from ..report.text import headline, render
from .session import Session
from .strict import StrictBackward

__all__ = ["WatchedTest"]


class WatchedTest:
    """Open from the test's fixtures on; the first value that is not finite ends the test."""

    def __init__(self, name: str) -> None:
        self._session = Session("raise", say=_say_nothing)
        self._session.open(name)
        block = self._session.block
        self._strict = StrictBackward(block) if block is not None else None

    @property
    def incidents(self) -> list[Incident]:
        return self._session.incidents

    def begin(self, names: Mapping[str, Any]) -> None:
        """The fixtures are ready, the test begins; some of their optimizers may be older than it."""
        self._session.adopt(names)
        if self._strict is not None:
            self._strict.begin()

    def close(self, error: BaseException | None = None) -> None:
        try:
            self._session.close(error)
        finally:
            if self._strict is not None:
                self._strict.close()

    def shorten(self, error: BaseException) -> None:
        """An error of ours is shown where the test stood."""
        if isinstance(error, NonFiniteError):
            _at_the_line(error)

    def headline(self) -> str:
        return f"stayfinite: {headline(self.incidents[0])}"

    def texts(self) -> list[str]:
        """Each incident in full."""
        return [render(i) for i in self.incidents]


def _at_the_line(error: NonFiniteError) -> None:
    """Its traceback ends where the test stood: what torch and we did there is no news."""
    kept: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        if name.startswith(("torch.", "stayfinite.patches")):
            break
        kept.append(trace)
        trace = trace.tb_next
    shown: TracebackType | None = None
    for each in reversed(kept):
        shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    error.__traceback__ = shown


def _say_nothing(incident: Incident) -> None:
    """It is in the test's report."""
