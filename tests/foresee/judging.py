"""Steps captured and functions judged over a box, for the tests."""

from collections.abc import Callable

import torch

from stayfinite.foresee.capture import StepCapture
from stayfinite.foresee.intervals.analysis import judge
from stayfinite.foresee.intervals.box import Box, box_around
from stayfinite.foresee.records import Verdict
from stayfinite.foresee.tape import Capture
from stayfinite.locate.notes import SourceRef


def capture_steps(
    step: Callable[[], object], sources=(), module_names=None, num_steps: int = 1
) -> Capture:
    """Run `step` several times and record it."""
    taken = StepCapture(sources, module_names or {})
    for _ in range(num_steps):
        with taken:
            step()
    return taken.capture


def judged(
    f: Callable,
    ranges: dict[str, tuple[float, float]],
    dtype=torch.float32,
    backward=False,
    sizes=(),
    **given,
) -> tuple[Verdict, ...]:
    """Verdicts on `f(x=..., y=...)`; inputs are (4, 3) and in the middle of their range unless given."""
    inputs = {}
    for name, (low, high) in ranges.items():
        t = torch.full((4, 3), (low + high) / 2, dtype=dtype)
        inputs[name] = given.get(name, t).requires_grad_(
            backward and given.get(name, t).is_floating_point()
        )
    taken = StepCapture([SourceRef("batch", n, t) for n, t in inputs.items()])
    taken.is_strict = True
    with taken:
        out = f(**inputs)
        if backward:
            out.sum().backward()
    box = box_around(taken.capture, batch_sizes=sizes)
    return judge(taken.capture, Box(data={**box.data, **ranges}, batch_sizes=tuple(sizes))).verdicts


def failing(verdicts: tuple[Verdict, ...]) -> dict[str, str]:
    """Operator and condition of what can fail."""
    return {v.operation.name: v.condition for v in verdicts if v.status == "can_fail"}


def statuses(verdicts: tuple[Verdict, ...]) -> set[str]:
    return {v.status for v in verdicts}
