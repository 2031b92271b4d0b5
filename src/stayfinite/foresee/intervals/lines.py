"""Groups verdicts by source line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..records import Verdict

__all__ = ["ByLine", "by_line"]

_RANK = {"can_fail": 0, "unknown": 1, "safe": 2}


@dataclass(frozen=True)
class ByLine:
    """All verdicts on one line."""

    file: str | None
    line: int | None
    verdicts: tuple[Verdict, ...]

    @property
    def worst(self) -> Verdict:
        """The one to report: can fail before unknown, the forward before the backward."""
        return min(
            self.verdicts,
            key=lambda v: (
                _RANK[v.status],
                v.after is not None,
                v.operation.phase != "forward",
                v.operation.index,
            ),
        )

    @property
    def status(self) -> str:
        return self.worst.status

    def data(self) -> dict[str, Any]:
        """For programs: only what JSON can hold."""
        v = self.worst
        op = v.operation
        return {
            "file": self.file,
            "line": self.line,
            "status": v.status,
            "op": op.name,
            "phase": op.phase,
            "module": op.module,
            "dtype": op.dtype,
            "source": op.source,
            "condition": v.condition,
            "cause": v.kind,
            "operators": {s: sum(x.status == s for x in self.verdicts) for s in _RANK},
        }


def by_line(verdicts: Iterable[Verdict]) -> list[ByLine]:
    """Lines in the order in which they first ran."""
    found: dict[tuple[str | None, int | None], list[Verdict]] = {}
    for v in verdicts:
        found.setdefault((v.operation.file, v.operation.line), []).append(v)
    return [ByLine(file, line, tuple(vs)) for (file, line), vs in found.items()]
