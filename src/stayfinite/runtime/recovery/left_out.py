"""Batches that were not trained on, and those that a rollback still has to skip."""

from __future__ import annotations

from dataclasses import replace

from ...records import Action, Incident
from ...recover.ledger import Ledger, LedgerEntry
from ...report.text import headline
from ..samples import whole_numbers
from ..window import Window

__all__ = ["LeftOut"]


class LeftOut:
    """Records skipped batches in the ledger, each with its incident."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.drops: dict[int, int] = {}
        """How many batches of each loader (by id) are still to be skipped; key 0: no loader."""

    def note(self, window: Window | None, kind: str, incident: Incident) -> None:
        if window is None:
            return
        first_bad = {incident.event.step: incident.location.first_bad}
        self.ledger.add(
            *(
                LedgerEntry(
                    step=ref.step, epoch=ref.epoch, kind=kind, indices=whole_numbers(ref.indices),
                    reason=headline(replace(incident, action=Action(kind="none"))),
                    incident=incident.id, first_bad=first_bad.get(ref.step, ""),
                )
                for ref in window.batches
            )
        )  # fmt: skip

    def drop_next(self, window: Window | None, count: int) -> None:
        """Skip the next `count` batches of the loaders of this window."""
        if not count:
            return
        owners = [o() for b in window.batches for o, _ in b.items] if window is not None else []
        for key in {id(o) if o is not None else 0 for o in owners} or {0}:
            self.drops[key] = self.drops.get(key, 0) + count

    def drops_batch(
        self, step: int, indices: object, loader: object | None, is_first: bool = True
    ) -> bool:
        """Whether a rollback skips this batch as well."""
        key = id(loader) if loader is not None else 0
        if not self.drops.get(key):
            return False
        self.drops[key] -= 1
        if is_first:
            self.ledger.add(
                LedgerEntry(
                    step=step, epoch=0, kind="dropped", indices=whole_numbers(indices),
                    reason="left out after a rollback (skip_next)",
                )
            )  # fmt: skip
        return True
