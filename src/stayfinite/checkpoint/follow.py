"""Follows a training's checkpoint folder and judges each new checkpoint once it is written.

A file counts as written if it is the same in two consecutive polls. If it then seems truncated, it is polled a few more times,
because a writer may pause.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from .discover import Unit, discover
from .limits import DEFAULT_LIMITS, Limits
from .places import Place, identity, place
from .records import CheckpointReport
from .scanner import scan

__all__ = ["Follower", "write_pointer"]

_UNFINISHED = (".tmp", ".part", ".partial", ".incomplete", ".crdownload", ".swp", ".lock")
_CUT = {"truncated", "missing_file", "missing_tensor", "unreadable"}

Signature = tuple[tuple[str, int, float], ...]


@dataclass
class _Seen:
    signature: Signature
    num_looks: int = 1
    report: CheckpointReport | None = None


class Follower:
    """Polls a folder; `poll` returns the new reports.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     follower = Follower(folder)
    ...     torch.save({"step": 1, "w": torch.ones(2)}, f"{folder}/step_1.pt")
    ...     first, second, third = follower.poll(), follower.poll(), follower.poll()
    >>> len(first), second[0].verdict, len(third), follower.last_good.endswith("step_1.pt")
    (0, 'healthy', 0, True)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        limits: Limits = DEFAULT_LIMITS,
        patience: int = 5,
    ) -> None:
        self._folder = place(os.fspath(folder))
        if not self._folder.is_dir():
            raise UsageError(f"{folder} is no folder: there is nothing to follow")
        self._limits = limits
        self._patience = patience
        self._seen: dict[str, _Seen] = {}
        self.num_bad = 0

    @property
    def last_good(self) -> str | None:
        """The last usable checkpoint that exists now."""
        reports = [s.report for s in self._seen.values() if s.report is not None]
        usable = [r for r in reports if r.is_usable and r.kind != "data" and r.link_to is None]
        return max(usable, key=_order).path if usable else None

    def poll(self) -> list[CheckpointReport]:
        """The checkpoints that were completed or rewritten since the last poll."""
        units = [
            u for u in discover([self._folder], self._limits).units if not _is_unfinished(u.path)
        ]
        present = {identity(u.path) for u in units}
        self._seen = {k: s for k, s in self._seen.items() if k in present}
        found = [r for unit in units if (r := self._look(unit)) is not None]
        self.num_bad += sum(not r.is_usable for r in found)
        return sorted(found, key=_order)

    def _look(self, unit: Unit) -> CheckpointReport | None:
        key, now = identity(unit.path), _signature(unit)
        seen = self._seen.get(key)
        if seen is None or seen.signature != now:
            self._seen[key] = _Seen(now)
            return None
        if seen.report is not None:
            return None
        seen.num_looks += 1
        found = scan(str(unit.path), timeline=False, limits=self._limits)
        report = next((c for c in found.checkpoints if identity(place(c.path)) == key), None)
        has_time = seen.num_looks < self._patience + 2
        if report is None or (has_time and _may_be_unfinished(report)):
            return None
        seen.report = report
        return report


def _is_unfinished(path: Place) -> bool:
    name = path.name.lower()
    return name.startswith(".") or name.endswith(_UNFINISHED)


def _may_be_unfinished(report: CheckpointReport) -> bool:
    found = [*report.findings, *(f for r in report.files for f in r.findings)]
    return report.verdict == "unreadable" and {f.code for f in found} <= _CUT


def _signature(unit: Unit) -> Signature:
    rows = []
    for file in unit.files or [unit.path]:
        try:
            status = file.stat()
            rows.append((str(file), int(status.st_size), float(status.st_mtime)))
        except OSError:
            rows.append((str(file), -1, 0.0))
    return tuple(rows)


def _order(report: CheckpointReport) -> tuple[int, int, float, str]:
    step = report.step if report.step is not None else -1
    epoch = report.epoch if report.epoch is not None else -1
    return step, epoch, report.modified, report.path


def write_pointer(path: Path, target: str | None) -> None:
    """Keep the path of the last good checkpoint in a file, which is replaced in one step."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(f"{target or ''}\n", encoding="utf-8")
    os.replace(part, path)
