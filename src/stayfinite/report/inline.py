"""The result of `guard.report()`: text when printed, HTML in a notebook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from ..records import Event, Incident
from .text import render

__all__ = ["InlineReport"]


class InlineReport:
    """The incidents and warnings of a training so far.

    >>> print(InlineReport((), (), 12))
    stayfinite: 12 steps applied, no incident
    """

    def __init__(
        self, incidents: Sequence[Incident], warnings: Sequence[Event], num_applied: int
    ) -> None:
        self.incidents = tuple(incidents)
        self.warnings = tuple(warnings)
        self.num_applied = num_applied

    def _title(self) -> str:
        count = len(self.incidents)
        found = f"{count} incident{'s' if count > 1 else ''}" if count else "no incident"
        kinds = Counter(i.diagnosis.cause or "unexplained" for i in self.incidents)
        causes = ", ".join(f"{cause} {n}x" for cause, n in kinds.items())
        named = f": {causes}" if causes else ""
        warned = f"; {len(self.warnings)} warnings" if self.warnings else ""
        return f"stayfinite: {self.num_applied} steps applied, {found}{named}{warned}"

    def _first_of_each(self) -> list[Incident]:
        return [i for i in self.incidents if i.same_as is None]

    def __str__(self) -> str:
        return "\n\n".join([self._title(), *(render(i) for i in self._first_of_each())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        shown = "".join(i._repr_html_() for i in self._first_of_each())
        return f"<div><b>{escape(self._title())}</b>{shown}</div>"
