"""The ledger of batches that were not trained on, with the reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..plain import from_plain, to_plain
from ..private import make_folder, open_private

__all__ = ["LEDGER_NAME", "Ledger", "LedgerEntry"]

LEDGER_NAME = "ledger.jsonl"


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One batch that was skipped, or cut."""

    step: int
    epoch: int = 0
    kind: str = "skipped"
    """skipped | rolled_back | dropped | sanitized; of the run itself: healed | stopped"""
    indices: tuple[int, ...] = ()
    """The positions of the samples in the data set, if the DataLoader's sampler is known."""
    rows: tuple[int, ...] = ()
    """For `sanitized`: the rows of the batch that were dropped or replaced."""
    reason: str = ""
    incident: str | None = None
    """The id of its incident."""
    first_bad: str = ""
    """The first bad value: "sample 1327 of the data set, feature 101"; "" if it was not investigated."""


class Ledger:
    """The batches that were skipped, oldest first; a sequence of entries.

    >>> ledger = Ledger()
    >>> ledger.add(LedgerEntry(step=7, indices=(14, 15), reason="the loss is nan"))
    >>> len(ledger), ledger[0].step, ledger.steps("skipped")
    (1, 7, [7])
    >>> [batch for _, batch in ledger.replay(list("abcdefghijklmnop"), collate=list)]
    [['o', 'p']]
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._path = Path(path) if path is not None else None
        self._entries: list[LedgerEntry] = []
        self._is_broken = False

    def add(self, *entries: LedgerEntry) -> None:
        """Add entries; with a file, they are on disk when this returns."""
        self._entries += entries
        if self._path is None or self._is_broken or not entries:
            return
        text = "".join(json.dumps(to_plain(e), allow_nan=False) + "\n" for e in entries)
        try:
            make_folder(self._path.parent)
            with open(self._path, "a", encoding="utf-8", opener=open_private) as handle:
                handle.write(text)
                handle.flush()
                os.fsync(handle.fileno())
        except OSError:
            self._is_broken = (
                True  # the run folder has reported it already; the entries stay in memory
            )

    @classmethod
    def load(cls, path: str | Path) -> Ledger:
        """Load the ledger of an earlier run from its `ledger.jsonl` or its run folder."""
        where = Path(path)
        where = where / LEDGER_NAME if where.is_dir() else where
        ledger = cls()
        try:
            lines = where.read_text(encoding="utf-8").splitlines()
        except OSError as e:
            raise UsageError(f"cannot read the ledger {where}: {e.strerror or e}") from None
        for number, line in enumerate(lines, 1):
            try:
                ledger._entries.append(from_plain(LedgerEntry, json.loads(line)))
            except json.JSONDecodeError:
                if number == len(lines):
                    break  # cut short by a kill: the entries before it are complete
                raise UsageError(f"{where}:{number} is not a line of a ledger") from None
        return ledger

    def steps(self, *kinds: str) -> list[int]:
        """The steps of all entries, or of those of the given kinds."""
        return [e.step for e in self._entries if not kinds or e.kind in kinds]

    def replay(
        self, dataset: Any, collate: Callable[[list[Any]], Any] | None = None
    ) -> Iterator[tuple[LedgerEntry, Any]]:
        """Make the batches again from the data set; entries with unknown samples are omitted."""
        from torch.utils.data import default_collate

        join = collate or default_collate
        for entry in self._entries:
            if entry.indices:
                yield entry, join([dataset[i] for i in entry.indices])

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(self._entries)

    def __getitem__(self, i: int) -> LedgerEntry:
        return self._entries[i]

    def __repr__(self) -> str:
        kinds = [e.kind for e in self._entries]
        counts = ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds))
        return f"Ledger({counts or 'empty'})"
