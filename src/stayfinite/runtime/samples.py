"""Finds the bad samples of a batch, and the batch without them or their bad values."""

from __future__ import annotations

import torch
from torch import Tensor

from ..numerics.health import is_finite
from ..records import Action, Incident
from ..recover.ledger import Ledger, LedgerEntry
from .batches import named_tensors
from .host import Host
from .rows import map_tensors, num_rows, take_rows
from .window import BatchRef, Item, Window

__all__ = ["Sanitizer", "bad_rows", "whole_numbers", "zeroed"]


def bad_rows(batch: object, total: int | None) -> list[int]:
    """Rows of a batch with a NaN or Inf; [-1] if they cannot be assigned to rows.

    >>> bad_rows((torch.tensor([[1.0], [float("nan")]]), torch.zeros(2)), 2)
    [1]
    """
    rows: set[int] = set()
    for _, t in named_tensors(batch):
        if is_finite(t):
            continue
        if total is None or t.dim() == 0 or t.shape[0] != total or t.layout != torch.strided:
            return [-1]
        per_row = torch.isfinite(t.detach()).reshape(total, -1).all(dim=1)
        rows.update(torch.nonzero(~per_row).flatten().tolist())
    return sorted(rows)


def zeroed(t: Tensor) -> Tensor:
    """The tensor with zeros in place of values that are not finite."""
    if not t.is_floating_point() or is_finite(t):
        return t
    clean = torch.nan_to_num(t.detach(), nan=0.0, posinf=0.0, neginf=0.0)
    return clean.requires_grad_(t.requires_grad)


class Sanitizer:
    """Repeats a step with its good samples."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._done: set[tuple[int, int]] = set()

    def has_cut(self, epoch: int, step: int) -> bool:
        """Whether the bad samples of this step were removed already."""
        return (epoch, step) in self._done

    def cut(
        self, window: Window, incident: Incident, ledger: Ledger, can_repeat: bool
    ) -> Window | None:
        """The same window with its non-finite samples dropped or their bad values replaced."""
        refs: list[BatchRef] = []
        bad: list[tuple[BatchRef, list[int]]] = []
        found, can = False, can_repeat
        for ref in window.batches:
            total = num_rows(ref.value)
            rows = bad_rows(ref.value, total)
            if not rows and len(window.batches) == 1:
                rows = [r for r in incident.diagnosis.samples if total and r < total]
            if not rows:
                refs.append(ref.again())
                continue
            items = self._cut(ref, rows, total)
            if items is None:
                can = False
                break
            found = True
            bad.append((ref, rows))
            refs.append(ref.again(items))
        ranks = self._host.ranks  # all ranks run the step again, those with clean samples too
        if not ranks.all(can) or not ranks.any(found):
            return None
        for ref, rows in bad:
            self._note(ref, rows, incident, ledger)
        self._done.add((window.epoch, window.step))
        return Window(batches=refs, rng=window.rng, lrs=window.lrs)

    def _cut(self, ref: BatchRef, rows: list[int], total: int | None) -> list[Item] | None:
        if self._host.policy.sanitizer == "replace":
            return [(o, map_tensors(item, zeroed)) for o, item in ref.items]
        if total is None or len(rows) >= total or -1 in rows:
            return None
        keep = [r for r in range(total) if r not in set(rows)]
        return [(o, take_rows(item, keep, total)) for o, item in ref.items]

    def _note(self, ref: BatchRef, rows: list[int], incident: Incident, ledger: Ledger) -> None:
        known = whole_numbers(ref.indices)
        places = tuple(known[r] for r in rows if 0 <= r < len(known))
        what = "dropped" if self._host.policy.sanitizer == "drop" else "replaced by zeros"
        ledger.add(
            LedgerEntry(
                step=ref.step, epoch=ref.epoch, kind="sanitized", indices=places,
                rows=tuple(r for r in rows if r >= 0), incident=incident.id,
                reason=f"non-finite samples were {what}",
            )
        )  # fmt: skip

    def action(self, incident: Incident, ledger: Ledger) -> Action:
        """The action, with a description."""
        count = sum(len(e.rows) for e in ledger if e.incident == incident.id)
        what = "dropped" if self._host.policy.sanitizer == "drop" else "set to zero"
        return Action(
            kind="sanitized",
            detail=f"{count} sample{'s' * (count != 1)} with non-finite values {what}; "
            "the step was made with the rest",
        )


def whole_numbers(found: object) -> tuple[int, ...]:
    """The integers in a list; a sampler may yield anything."""
    return tuple(i for i in found if isinstance(i, int)) if isinstance(found, list) else ()
