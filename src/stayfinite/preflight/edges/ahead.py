"""Runs a copy of the training ahead on its own batches and rates."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...records import StepRecord
from ..config.schedule import num_batches
from ..layers import has_scaler, is_lost
from ..probes import Probe, Seen, Subject
from ..stability.batch import holds_bad
from .predict import Prediction, capsule_path, new_id

__all__ = ["FEWEST", "Ahead", "affordable", "run_on"]

_SOON = 3
_FEW = 30
"""Epochs of the batches that were seen, and steps: a training may well be over after them."""
FEWEST = 4
"""This many steps are taken, however long one takes."""
_MEASURED = 8
"""Every so many steps weights and moments are measured."""


@dataclass
class Ahead:
    """The result of several real steps."""

    steps: list[Seen] = field(default_factory=list)
    broke: Prediction | None = None
    error: str | None = None
    """What a step raised, if one did."""
    is_marked: bool = False
    """The state behind the last step is marked: later probes may begin from it."""
    peaks: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """(step, the largest magnitude of each weight and moment behind it)"""

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.steps)

    @property
    def growth(self) -> float:
        """The largest factor by which a weight has grown."""
        if len(self.peaks) < 2:
            return 1.0
        first, last = self.peaks[0][1], self.peaks[-1][1]
        pairs = [(first.get(n, 0.0), v) for n, v in last.items() if ":" not in n]
        return max((b / a for a, b in pairs if a > 1e-6), default=1.0)


def run_on(
    subject: Subject,
    batches: Sequence[Any],
    num_steps: int,
    seconds: float,
    *,
    mark: bool = False,
) -> Generator[Probe, Seen, Ahead]:
    """Run steps in order, starting again from the first batch after the last.

    Ends after `num_steps`, or after `seconds` (estimated from the first steps, so that the same answers give the same probes), or
    when a step breaks: that one is then traced.
    """
    ahead = Ahead()
    i = -1
    while (i := i + 1) < num_steps:
        is_last = i == num_steps - 1
        probe = _step(batches, i, keep=not is_last or mark)
        probe.mark = mark and is_last
        seen = yield probe
        if i == 1 and num_steps > FEWEST:
            # The first step is slower than the rest, so the second one is measured.
            num_steps = min(num_steps, affordable(seen, seconds))
        if seen.peaks:
            ahead.peaks.append((i, seen.peaks))
        if seen.error is not None:
            ahead.error = seen.error
            break
        if is_lost(subject, seen):
            ahead.broke = yield from _traced(subject, batches, i, ahead)
            break
        ahead.steps.append(seen)
        if any(not _is_rate(rate) for rate in seen.lrs):
            break  # the schedule is through: no training goes on like this
    else:
        ahead.is_marked = mark and num_steps > 0
    return ahead


def affordable(seen: Seen, seconds: float) -> int:
    """How many steps fit the time, where one takes as long as this."""
    return max(FEWEST, int(seconds / max(seen.seconds, 1e-5)))


def _is_rate(rate: Any) -> bool:
    return not isinstance(rate, complex) and rate >= 0


def _step(batches: Sequence[Any], i: int, keep: bool) -> Probe:
    return Probe(
        batch=batches[i % len(batches)], name=f"step {i + 1}, run ahead", apply=True, keep=keep,
        fresh=i == 0, weigh=False, measure=i % _MEASURED == 0,
    )  # fmt: skip


def _traced(
    subject: Subject, batches: Sequence[Any], last: int, ahead: Ahead
) -> Generator[Probe, Seen, Prediction]:
    """The same steps once more; the last one shows where its first bad value is born."""
    name = new_id()
    for i in range(last):
        probe = _step(batches, i, keep=True)
        probe.name = f"step {i + 1}, again"
        yield probe
    batch = batches[last % len(batches)]
    seen = yield Probe(
        batch=batch, name=f"step {last + 1}, traced", apply=True, fresh=last == 0, weigh=False,
        trace=True, scale=1.0 if has_scaler(subject) else None, save_to=capsule_path(subject, name),
    )  # fmt: skip
    done = f"batch {last} of its own" if last < len(batches) else "its own batches, once more"
    if holds_bad(batch):
        done += ", which holds NaN or Inf"
    return Prediction(
        group="edges",
        check="edges/ahead",
        what=f"step {last} of a copy of the training ({done})",
        level=_level(subject, len(batches), last, ahead),
        why=f"seen: {last} steps at its own rates are finite, the next one is not",
        seen=seen,
        batch=batch,
        step=last,
        id=name,
        history=records_of(ahead.steps),
        growth=ahead.growth,
        remedy="mend or leave out its samples that are not finite: stayfinite check --only data names them"
        if holds_bad(batch)
        else "lower the learning rate or lengthen the warmup, and clip the gradient norm",
    )


def _level(subject: Subject, num_seen: int, last: int, ahead: Ahead) -> str:
    """Soon is certain. Later, on batches that come again and again, it is possible, at rates that were
    reached early: a schedule may have ended by then."""
    soon = max(_SOON * max(num_seen, num_batches(subject) or 0), _FEW)
    if last < soon:
        return "certain"
    rates = [max(s.lrs, default=0.0) for s in ahead.steps]
    is_usual_rate = max(rates[soon:], default=0.0) <= 1.01 * max(rates[:soon])
    return "possible" if is_usual_rate else "far"


def records_of(steps: Sequence[Seen]) -> tuple[StepRecord, ...]:
    """The steps as the rules know them."""
    return tuple(
        StepRecord(step=i, loss=s.loss, grad_norm=s.grad_norm, lr=s.lrs, is_applied=True)
        for i, s in enumerate(steps)
    )
