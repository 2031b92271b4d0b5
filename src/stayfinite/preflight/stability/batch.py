"""Decides whether a broken step is due to the learning rate or to the batch."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ...numerics.health import is_finite
from ...runtime.batches import named_tensors
from ...runtime.rows import num_rows, take_rows
from ..flow.group import at_location
from ..layers import has_scaler
from ..probes import Probe, Seen, Subject
from ..records import Finding, failed

__all__ = ["Bad", "Numbered", "bad_batch", "every_batch", "holds_bad", "odd_batch", "tiny_rate"]

GROUP = "stability"
ODD = 10.0
"""How many times the others' loss before any step makes a batch the odd one out."""
_LEAST_LOSS = 0.1
_TINY_LR = 1e-9
_MAX_ROWS = 4096

Numbered = Sequence[tuple[int, Any]]
"""Batches with their number in the order of the training, from 0."""


@dataclass(frozen=True)
class Bad:
    """A batch that is to blame by itself."""

    number: int
    finding: Finding
    seen: Seen = field(repr=False)


def tiny_rate(lr: float) -> float | None:
    """The factor at which a step moves nothing; None where the rate itself is no number.

    >>> tiny_rate(0.001)
    1e-06
    """
    if not math.isfinite(lr):
        return None
    return _TINY_LR / max(abs(lr), _TINY_LR)


def bad_batch(subject: Subject, number: int, batch: Any) -> Generator[Probe, Seen, Bad | None]:
    """Whether this batch breaks before any step has moved the weights."""
    name = f"batch {number} before any step"
    scale = 1.0 if has_scaler(subject) else None
    seen = yield Probe(batch=batch, name=name, trace=True, fresh=True, scale=scale)
    if seen.error is None and seen.is_finite:
        return None
    row = yield from _bad_row(subject, number, batch, seen)
    what = "this batch" if row is None else f"row {row}"
    finding = failed(
        GROUP,
        "stability/batch",
        f"{_row_words(batch, row)}breaks before any step: {broke_words(seen)}; the learning rate is "
        "not to blame",
        f"mend or leave out {what}: stayfinite check --only data names samples"
        if holds_bad(batch)
        else f"make the model and the loss safe for {what}, or leave it out",
        subject=f"batch {number} (from 0)",
        weight=3,  # data and forward say the same of it, and where it comes from
        data={"batch": number, "row": row, "loss": seen.loss, "error": seen.error},
    )
    return Bad(number, finding, seen)


def every_batch(bad: Bad, num_batches: int) -> Finding:
    """No batch gets through, so nothing can be said about any one of them."""
    many = "every batch" if num_batches > 1 else "the only batch seen"
    return failed(
        GROUP,
        "stability/batch",
        f"breaks before any step: {broke_words(bad.seen)}; the learning rate is not to blame",
        "mend this first: stayfinite check --only forward says more",
        subject=many,
        weight=3,
        data={"loss": bad.seen.loss, "error": bad.seen.error},
    )


def odd_batch(batches: Numbered) -> Generator[Probe, Seen, Bad | None]:
    """The loss grew: whether one batch is far out before any step."""
    if len(batches) < 3:
        return None  # of two, nobody can say which one is the odd one
    losses: list[tuple[float, int, Seen]] = []
    for number, batch in batches:
        name = f"batch {number} before any step"
        seen = yield Probe(batch=batch, name=name, fresh=True)
        if seen.loss is None or not math.isfinite(seen.loss) or seen.error is not None:
            return None
        losses.append((abs(seen.loss), number, seen))
    losses.sort(key=lambda found: found[0])
    largest, number, seen = losses[-1]
    others = [loss for loss, _, _ in losses[:-1]]
    if largest <= ODD * max(median(others), _LEAST_LOSS):
        return None
    finding = failed(
        GROUP,
        "stability/batch",
        f"its loss is {largest:.3g} before any step, that of the others {others[0]:.3g} to "
        f"{others[-1]:.3g}; without it the steps are steady, so the learning rate is not to blame",
        "look for an input or a target far out of range in it, or clip the gradient norm to 1.0",
        subject=f"batch {number} (from 0)",
        weight=9,
        data={"batch": number, "loss": seen.loss},
    )
    return Bad(number, finding, seen)


def broke_words(seen: Seen) -> str:
    """How a probe broke, with the operator and the line where they are known."""
    if seen.error is not None:
        place, _, source = seen.error_at.partition(" ")
        at = f" at {os.path.basename(place)}" if place else ""
        return f"{seen.error}{at}" + (f": {source}" if source else "")
    _, words = at_location(seen.location)
    has_loss = seen.loss is not None and math.isfinite(seen.loss)
    return ("a gradient or the state is not finite" if has_loss else f"loss {seen.loss}") + words


def _bad_row(
    subject: Subject, number: int, batch: Any, seen: Seen
) -> Generator[Probe, Seen, int | None]:
    """The sample that breaks a batch by itself, by halving; None where no single one does."""
    total = num_rows(batch)
    if total is None or total > _MAX_ROWS or not subject.can_change_rows or seen.error is not None:
        return None
    scale = 1.0 if has_scaler(subject) else None
    rows, is_sure = list(range(total)), True
    while len(rows) > 1 or not is_sure:
        half = rows[: max(len(rows) // 2, 1)]
        name = f"batch {number}, rows {half[0]} to {half[-1]}"
        tried = yield Probe(batch=take_rows(batch, half, total), name=name, fresh=True, scale=scale)
        if tried.error is not None:
            return None
        is_sure = not tried.is_finite
        if is_sure:
            rows = half
        elif len(rows) == 1:
            return None
        else:
            rows = rows[len(half) :]
    return rows[0]


def _row_words(batch: Any, row: int | None) -> str:
    """`row 5 (batch[0] up to 3e+08) `: which sample it is and what is in it."""
    if row is None:
        return ""
    total = num_rows(batch)
    facts = []
    for name, t in named_tensors(batch):
        if t.dim() == 0 or t.shape[0] != total or not t.is_floating_point() or not t.numel():
            continue
        if not is_finite(t[row]):
            facts.append(f"{name} holds NaN or Inf")
        else:
            facts.append(f"{name} up to {float(t[row].abs().max()):.3g}")
    return f"row {row} ({', '.join(facts[:3])}) " if facts else f"row {row} "


def holds_bad(batch: Any) -> bool:
    """Whether a NaN or Inf is in it."""
    floats = [t for _, t in named_tensors(batch) if t.is_floating_point()]
    return not all(is_finite(t) for t in floats)
