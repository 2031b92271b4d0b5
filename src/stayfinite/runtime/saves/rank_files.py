"""Checkpoints with one file per rank: `step_5/rank0.pt`, `model_rank_1_step_5.pt`.

One of them alone is no state to go on from. A set counts only where every rank's file is there and good.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ...checkpoint.records import CheckpointReport
from ..ranks.groups import own_rank
from .gate import MARK

__all__ = ["whole_sets"]

_RANK = re.compile(r"(?<![A-Za-z])(rank[_-]?)(\d+)", re.IGNORECASE)


@dataclass
class _Set:
    """The files of one save, by the rank that wrote them."""

    files: dict[int, CheckpointReport] = field(default_factory=dict)
    has_bad: bool = False
    ranks: set[int] = field(default_factory=set)
    """Of all of them, the bad ones too."""

    def is_whole(self, before: _Set | None) -> bool:
        """As many ranks as there are numbers, and none less than wrote the set before it: one that was killed has
        left no file at all."""
        expected = set(range(max(self.files, default=-1) + 1))
        if before is not None:
            expected |= before.files.keys()
        return not self.has_bad and bool(self.files) and expected == self.files.keys()

    @property
    def own(self) -> CheckpointReport:
        """What this rank wrote; where it wrote none, what the first has written."""
        return self.files.get(own_rank() or 0) or self.files[min(self.files)]


def whole_sets(
    home: str | os.PathLike[str],
    reports: Iterable[CheckpointReport],
    is_good: Callable[[CheckpointReport], bool],
    order: Callable[[CheckpointReport], Any],
) -> list[CheckpointReport]:
    """The good ones; of each set that is whole, this rank's."""
    singles: list[CheckpointReport] = []
    families: dict[str, dict[str, _Set]] = {}
    for report in reports:
        path = os.path.relpath(report.path, home)  # what lies above it has names of its own
        found = _RANK.search(path)
        if found is None:
            singles += [report] if is_good(report) else []
            continue
        name = _RANK.sub(r"\1#", path.replace(MARK, ""), count=1)
        one = families.setdefault(re.sub(r"\d+", "#", name), {}).setdefault(name, _Set())
        one.ranks.add(int(found[2]))
        if is_good(report):
            one.files[int(found[2])] = report
        else:
            one.has_bad = True
    for family in families.values():
        if not _is_of_ranks(family.values()):
            singles += [r for s in family.values() for r in s.files.values()]
            continue
        sets = sorted((s for s in family.values() if s.files), key=lambda s: order(s.own))
        pairs = zip(sets, [None, *sets])
        singles += [s.own for s, before in pairs if s.is_whole(before)]
    return singles


def _is_of_ranks(sets: Iterable[_Set]) -> bool:
    """Ranks begin at 0; `lora_rank8` is a size, and its files are saves of their own."""
    return any(0 in s.ranks for s in sets)
