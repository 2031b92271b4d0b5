"""Checkpoints with one file per rank: `step_5/rank0.pt`, `model_rank_1_step_5.pt`.

A single file is not enough to resume. A set counts only if the file of every rank exists and is good.
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
    """The files of one save, by rank."""

    files: dict[int, CheckpointReport] = field(default_factory=dict)
    has_bad: bool = False
    ranks: set[int] = field(default_factory=set)
    """All files, including bad ones."""

    def is_whole(self, before: _Set | None) -> bool:
        """Whether a set is complete: all numbers, and not fewer ranks than the previous set, because a killed rank has left no
        file.
        """
        expected = set(range(max(self.files, default=-1) + 1))
        if before is not None:
            expected |= before.files.keys()
        return not self.has_bad and bool(self.files) and expected == self.files.keys()

    @property
    def own(self) -> CheckpointReport:
        """The file of this rank, or that of the first."""
        return self.files.get(own_rank() or 0) or self.files[min(self.files)]


def whole_sets(
    home: str | os.PathLike[str],
    reports: Iterable[CheckpointReport],
    is_good: Callable[[CheckpointReport], bool],
    order: Callable[[CheckpointReport], Any],
) -> list[CheckpointReport]:
    """The good files; of each complete set, this rank's."""
    singles: list[CheckpointReport] = []
    families: dict[str, dict[str, _Set]] = {}
    for report in reports:
        path = os.path.relpath(report.path, home)  # higher folders have other names
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
    """Whether these are ranks, which begin at 0; `lora_rank8` is a size."""
    return any(0 in s.ranks for s in sets)
