"""The ranks of a run side by side: where failures began, and which rank the others wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ..records import Incident, RankPart
from .reading import printable, read_json

__all__ = ["RankRow", "part_lines", "rank_rows", "story_of_ranks"]

_MAX_BYTES = 1 << 16
_MAX_RANKS = 4096
_LONGEST = 1e12
_LATE = 0.1
"""A rank that takes longer than the others by this share of a step, until it exchanges its gradients, delays them."""
_FEW = 8
"""The number of timed steps from which on they are compared."""
_TIMES = ("seconds", "between", "forward")
_BEGAN = ("began", "sent")
_WORDS = {
    "began": "it began here",
    "sent": "its own value was bad, and went to the others",
    "received": "received it from the others",
    "fine": "nothing bad was seen here",
}


@dataclass
class RankRow:
    """One rank of a run."""

    rank: int
    host: str = ""
    steps: int = 0
    timed: int = 0
    seconds: float = 0.0
    """All timed steps; of these, `between` until the batch was there, and `forward` from there to the backward."""
    between: float = 0.0
    forward: float = 0.0
    began: int = 0
    """Incidents that began on this rank."""
    followed: int = 0
    """Incidents that this rank received from another."""
    is_late: bool = False
    """Whether the other ranks wait for this one."""

    @property
    def times_ms(self) -> tuple[float, float, float] | None:
        """An average step: until the batch, the forward, and the rest, in which the ranks wait for each other."""
        if not self.timed:
            return None
        rest = self.seconds - self.between - self.forward
        return tuple(1e3 * t / self.timed for t in (self.between, self.forward, rest))  # type: ignore[return-value]


def rank_rows(folder: Path, incidents: Sequence[Incident]) -> list[RankRow]:
    """Make the rows from the summaries of the ranks in the run folder, and from the incidents."""
    rows: dict[int, RankRow] = {}
    for file in sorted((folder / "ranks").glob("rank*.json"))[:_MAX_RANKS]:
        row = _row(read_json(file, _MAX_BYTES))
        if row is not None:
            rows[row.rank] = row
    for part in (p for i in incidents for p in i.ranks[:_MAX_RANKS]):
        row = rows.setdefault(part.rank, RankRow(part.rank))
        row.began += part.role in _BEGAN
        row.followed += part.role not in _BEGAN
    found = [rows[r] for r in sorted(rows)]
    _note_late(found)
    return found if len(found) > 1 else []


def _note_late(rows: list[RankRow]) -> None:
    """Find ranks that take longer than the others, until the batch is there or until the backward.

    The second is the same on all ranks if the forward itself waits for others (FSDP). A stage of a pipeline may have no loss,
    and so no forward that could be compared.
    """
    timed = [r for r in rows if r.timed >= _FEW]
    if len(timed) < 2:
        return
    kinds = [[r.between / r.seconds for r in timed]]
    if all(r.forward for r in timed):
        kinds.append([(r.between + r.forward) / r.seconds for r in timed])
    for shares in kinds:
        for i, row in enumerate(timed):
            usual = median(shares[:i] + shares[i + 1 :])
            row.is_late = row.is_late or shares[i] > usual + _LATE


def _row(data: Any) -> RankRow | None:
    if not isinstance(data, dict) or data.get("kind") != "stayfinite.rank":
        return None
    counts = [n for k in ("rank", "steps", "timed") if isinstance(n := data.get(k), int)]
    times = [float(t) for k in _TIMES if isinstance(t := data.get(k), (int, float))]
    if (len(counts), len(times)) != (3, 3) or not all(0 <= n < _LONGEST for n in counts + times):
        return None
    host = printable(str(data.get("host", "")))[:64]
    (rank, steps, timed), (seconds, between, forward) = counts, times
    return RankRow(rank, host, steps, timed if seconds else 0, seconds, between, forward)


def story_of_ranks(rows: Sequence[RankRow]) -> list[str]:
    """One sentence about the rows.

    >>> story_of_ranks([RankRow(0, followed=2), RankRow(1, began=2, is_late=True)])
    ['2 of 2 incidents began at rank 1', 'the other ranks wait for rank 1']
    """
    found = []
    total = max((r.began + r.followed for r in rows), default=0)
    of_all = f"of {total} incident{'s' * (total != 1)} began"
    counts = {r.began for r in rows}
    if len(rows) > 1 and len(counts) == 1 and any(counts):
        found.append(f"{rows[0].began} {of_all} at each rank")
    else:
        first = sorted(rows, key=lambda r: -r.began)[:3]
        found += [f"{r.began} {of_all} at rank {r.rank}" for r in first if r.began]
    late = [str(r.rank) for r in rows if r.is_late]
    if late:
        found.append(f"the other ranks wait for rank{'s' * (len(late) > 1)} {', '.join(late)}")
    return found


def part_lines(parts: Iterable[RankPart]) -> list[tuple[str, str]]:
    """(ranks, their part in it): ranks where it began one by one, the others together.

    >>> part_lines([RankPart(rank=0, role="received"), RankPart(rank=1, role="began", indices=(5, 7))])
    [('rank 1', 'it began here; samples 5, 7 of the data set'), ('rank 0', 'received it from the others')]
    """
    lines, others = [], dict[str, list[str]]()
    for part in parts:
        if part.role in _BEGAN:
            more = f"; samples {_few(part.indices, 8)} of the data set" if part.indices else ""
            place = f", {part.place}" if part.place else ""
            lines.append((f"rank {part.rank}{place}", _WORDS[part.role] + more))
        else:
            others.setdefault(_WORDS.get(part.role, part.role), []).append(str(part.rank))
    for words, ranks in others.items():
        lines.append((f"rank{'s' * (len(ranks) > 1)} {_few(ranks)}", words))
    return lines


def _few(values: Sequence[object], limit: int = 16) -> str:
    shown = ", ".join(map(str, values[:limit]))
    return shown if len(values) <= limit else f"{shown}, … ({len(values)})"
