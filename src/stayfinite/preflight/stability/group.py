"""The stability group: real steps at one, three and ten times the learning rate."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from statistics import median

from ..layers import is_lost
from ..probes import Checks, Probe, Seen, Subject
from ..records import Finding, failed, passed, skipped, warned
from .batch import Numbered, bad_batch, broke_words, every_batch, odd_batch, tiny_rate

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
    """The result of a few steps at one learning rate."""

    factor: float
    losses: tuple[float, ...]
    is_finite: bool = True
    error: str | None = None
    lr: float = 0.0
    failed_at: int | None = None
    """The step, from 0, that raised or was not finite."""
    seen: Seen | None = field(default=None, repr=False, compare=False)
    """What that step showed."""
    num_batches: int = 1
    """The steps went over this many batches again and again."""

    @property
    def growth(self) -> float:
        """The loss at the end over the loss at the start: of the same batch, where one came twice."""
        if len(self.losses) < 2:
            return 1.0
        start = max(abs(self.losses[0]), LEAST_LOSS)
        grown = median(self.losses[-max(1, len(self.losses) // 3) :]) / start
        again = self.losses[0 :: self.num_batches]
        # Batches differ: the first one, of before any step, is compared with itself as well.
        return min(grown, again[-1] / start) if len(again) > 1 else grown

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
    """Check how far this learning rate is from divergence.

    Ten times the rate is tried first: most trainings are stable there, and need no other steps.
    """
    if not subject.batches or not subject.optimizers:
        return [skipped(GROUP, "stability/lr", "no batch or no optimizer was seen")]
    batches: Numbered = list(enumerate(subject.batches))
    far = yield from _course(subject, batches, FACTORS[-1])
    if not far.is_broken and far.growth <= RISING:
        return judge_stability([far], subject.num_steps)  # a smaller rate would not do worse
    own, kept, found = yield from _own_course(subject, batches)
    if own is None:
        return found
    courses = [own]
    if not own.is_broken:
        courses.append((yield from _course(subject, kept, FACTORS[1])))
    if not courses[-1].is_broken:
        is_same = len(kept) == len(batches)
        courses.append(far if is_same else (yield from _course(subject, kept, FACTORS[-1])))
    return [*found, *judge_stability(courses, subject.num_steps)]


def _own_course(
    subject: Subject, batches: Numbered
) -> Generator[Probe, Seen, tuple[Course | None, Numbered, list[Finding]]]:
    """(the steps at the training's own rate, the batches they took, what was found wrong with others).

    Batches that break by themselves are left out; no course where none is left, or where the steps
    break at any rate.
    """
    found: list[Finding] = []
    while True:
        course = yield from _course(subject, batches, FACTORS[0])
        if not course.is_broken:
            return course, batches, found
        if course.failed_at is not None:
            number, batch = batches[course.failed_at % len(batches)]
            bad = yield from bad_batch(subject, number, batch)
            if bad is not None:
                found.append(bad.finding)
                batches = [b for b in batches if b[0] != number]
                if batches:
                    continue
                return None, batches, [every_batch(bad, len(subject.batches))]
            stuck = yield from _at_any_rate(subject, batches, course)
            if stuck:
                return None, batches, [*found, *stuck]
        odd = yield from odd_batch(batches)
        if odd is not None:
            rest = [b for b in batches if b[0] != odd.number]
            without = yield from _course(subject, rest, FACTORS[0])
            if not without.is_broken:
                return without, rest, [*found, odd.finding]
        return course, batches, found


def _at_any_rate(
    subject: Subject, batches: Numbered, course: Course
) -> Generator[Probe, Seen, list[Finding]]:
    """The same steps at a rate that moves nothing; if they break too, it is not the rate."""
    factor = tiny_rate(course.lr)
    if factor is None or course.failed_at is None:
        return []
    slow = yield from _course(subject, batches, factor, course.failed_at + 1, has_trace=True)
    if slow.failed_at is None or slow.seen is None:
        return []
    number = batches[slow.failed_at % len(batches)][0]
    finding = failed(
        GROUP,
        "stability/step",
        f"breaks at a learning rate of {slow.lr:.1g}, too: {broke_words(slow.seen)}; the rate is "
        "not to blame",
        "mend what the message names; stayfinite run shows the step in full",
        subject=f"step {slow.failed_at} (from 0, batch {number})",
        weight=9,
        data={"batch": number, "loss": slow.seen.loss, "error": slow.error},
    )
    return [finding]


def _course(
    subject: Subject,
    batches: Numbered,
    factor: float,
    num_steps: int | None = None,
    has_trace: bool = False,
) -> Generator[Probe, Seen, Course]:
    losses: list[float] = []
    lr = 0.0
    num_steps = num_steps or subject.num_steps
    for i in range(num_steps):
        is_last = i == num_steps - 1
        seen = yield Probe(
            batch=batches[i % len(batches)][1],
            name=f"lr x{factor:g}, step {i + 1} of {num_steps}",
            apply=True,
            keep=not is_last,
            fresh=i == 0,
            lr_factor=factor,
            trace=has_trace and is_last,
        )
        lr = max(seen.lrs, default=lr)
        if seen.error is not None or is_lost(subject, seen):
            is_finite = seen.error is not None
            return Course(factor, tuple(losses), is_finite, seen.error, lr, i, seen, len(batches))
        if seen.loss is not None:
            losses.append(seen.loss)
    return Course(factor, tuple(losses), lr=lr, num_batches=len(batches))


def judge_stability(courses: list[Course], num_steps: int) -> list[Finding]:
    """What the courses show, from the training's own learning rate upwards; the largest one alone where
    it is steady."""
    first, last = courses[0], courses[-1]
    text = f"{num_steps} steps, loss: " + "; ".join(map(str, courses))
    data = {f"x{c.factor:g}": list(c.losses) for c in courses}
    more = {"data": data, "subject": f"lr {first.lr / first.factor:g}"}
    if first.is_broken:
        action = f"start with lr {min(first.lr / 10, 0.1):.1g} and a warmup; clip the gradient norm to 1.0"
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
