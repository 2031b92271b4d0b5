"""The stability group: real steps at one, three and ten times the learning rate."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from statistics import median

from .layers import has_scaler
from .probes import Checks, Probe, Seen, Subject
from .records import Finding, failed, passed, skipped, warned

__all__ = ["Course", "judge_stability", "stability"]

GROUP = "stability"
FACTORS = (1.0, 3.0, 10.0)
DIVERGED = 10.0
"""The loss at the end over the loss at the start."""
RISING = 3.0
LEAST_LOSS = 0.1
"""Losses near zero double easily; growth is measured from here."""


@dataclass(frozen=True)
class Course:
    """What a few steps at one learning rate did."""

    factor: float
    losses: tuple[float, ...]
    is_finite: bool = True
    error: str | None = None
    lr: float = 0.0

    @property
    def growth(self) -> float:
        """The loss at the end over the loss at the start."""
        if len(self.losses) < 2:
            return 1.0
        start = max(abs(self.losses[0]), LEAST_LOSS)
        return median(self.losses[-max(1, len(self.losses) // 3) :]) / start

    @property
    def is_broken(self) -> bool:
        return not self.is_finite or self.error is not None or self.growth > DIVERGED

    def __str__(self) -> str:
        if self.error is not None:
            return f"x{self.factor:g} raises {self.error}"
        if not self.is_finite:
            return f"x{self.factor:g} is not finite at step {len(self.losses) + 1}"
        return f"x{self.factor:g} {self.losses[0]:.3g} → {self.losses[-1]:.3g}"


def stability(subject: Subject) -> Checks:
    """How far this learning rate is from the one at which the training diverges."""
    if not subject.batches or not subject.optimizers:
        return [skipped(GROUP, "stability/lr", "no batch or no optimizer was seen")]
    courses: list[Course] = []
    for factor in FACTORS:
        course = yield from _course(subject, factor)
        courses.append(course)
        if course.is_broken:
            break  # a larger one would not do better
    return judge_stability(courses, subject.num_steps)


def _course(subject: Subject, factor: float) -> Generator[Probe, Seen, Course]:
    losses: list[float] = []
    lr = 0.0
    for i in range(subject.num_steps):
        batch = subject.batches[i % len(subject.batches)]
        is_last = i == subject.num_steps - 1
        name = f"lr x{factor:g}, step {i + 1} of {subject.num_steps}"
        seen = yield Probe(batch=batch, name=name, apply=True, keep=not is_last, lr_factor=factor)
        lr = max(seen.lrs, default=lr)
        if seen.error is not None:
            return Course(factor, tuple(losses), error=seen.error, lr=lr)
        is_number = seen.loss is not None and math.isfinite(seen.loss)
        if not seen.is_finite and not (has_scaler(subject) and is_number):
            return Course(factor, tuple(losses), is_finite=False, lr=lr)
        if seen.loss is not None:
            losses.append(seen.loss)
    return Course(factor, tuple(losses), lr=lr)


def judge_stability(courses: list[Course], num_steps: int) -> list[Finding]:
    """What the courses tell, from the training's own learning rate upwards."""
    first, last = courses[0], courses[-1]
    text = f"{num_steps} steps, loss: " + "; ".join(map(str, courses))
    data = {f"x{c.factor:g}": list(c.losses) for c in courses}
    more = {"data": data, "subject": f"lr {first.lr:g}"}
    if first.is_broken:
        action = f"start with lr {first.lr / 10:.1g} and a warmup; clip the gradient norm to 1.0"
        return [failed(GROUP, "stability/lr", text, action, weight=9, **more)]
    if first.growth > RISING:
        action = f"the loss rises from the start: try lr {first.lr / 10:.1g}, or a warmup"
        return [warned(GROUP, "stability/lr", text, action, weight=6, **more)]
    if last.is_broken and last.factor == FACTORS[1]:
        action = f"lower lr to {first.lr / 3:.1g}, or clip: at three times this one it diverges"
        return [warned(GROUP, "stability/lr", text, action, weight=4, **more)]
    edge = f"the edge is between x{FACTORS[1]:g} and x{last.factor:g}"
    note = edge if last.is_broken else f"steady up to x{last.factor:g}"
    return [passed(GROUP, "stability/lr", f"{text}; {note}", **more)]
