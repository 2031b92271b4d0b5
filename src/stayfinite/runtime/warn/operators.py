"""Warns of an operator whose value approaches the limit of its dtype: an `exp`, a `log`, an activation in float16.

The loss may be ordinary until the very step in which such an operator breaks. So from time to time, before a backward, the
values that autograd keeps are looked at (`operands`). This waits for the device, so it has a budget of its own; while
something is on its way, it is looked at in each step, as long as the budget lasts.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict, deque
from typing import Protocol

import torch
from torch import Tensor

from ...detect.approach import NEAR, steps_left
from ...locate.frames import Frame, place_from_traceback
from ...records import Event
from ...report.text import short_path
from ..frames import calling_frames
from ..outside_modes import outside_user_code
from ..state import TrainState
from ..window import Window
from .operands import Key, Operand, operands, shares
from .operator_lines import codes_of, line_of

__all__ = ["OperatorWatch"]

_SHARE = 0.4
"""Of the budget for deep checks."""
_CREDIT = 0.015
"""Seconds that may be spent at the start: a short training could not afford a single look."""
_KEPT = 8
_AT_ZERO = "keep its argument away from 0: a floor (clamp), or the form that takes logarithms"
_AT_TOP = "bound what goes in: a clamp, a norm, a smaller learning rate"
_EXPONENTIAL = (
    "subtract the maximum first, or bound what goes in: a clamp, a norm, a smaller learning rate"
)


class Warns(Protocol):
    """Collects the warnings of one training."""

    @property
    def state(self) -> TrainState: ...

    def warn(self, event: Event) -> None: ...


class OperatorWatch:
    """Looks at the operators of a step when it is due."""

    def __init__(self, budget: float) -> None:
        self._budget = _SHARE * budget
        self._started = time.perf_counter()
        self._spent = 0.0
        self._points: defaultdict[Key, deque[tuple[int, float]]] = defaultdict(
            lambda: deque(maxlen=_KEPT)
        )
        self._told: set[object] = set()
        self.is_due = True
        """Whether the next backward is looked at."""

    def plan(self) -> None:
        """Look at the next step if there is time for it. Called when the clock is read anyway."""
        self.is_due = self.is_due or self._has_time()

    def _has_time(self) -> bool:
        elapsed = time.perf_counter() - self._started
        return self._spent <= _CREDIT + self._budget * elapsed

    @outside_user_code
    @torch.no_grad()
    def look(self, training: Warns, window: Window, loss: Tensor) -> None:
        """Look at the operators behind this loss, before its graph is gone."""
        # A device is waited for; on a processor, other processes do not count.
        clock = time.thread_time if loss.is_cpu else time.perf_counter
        start = clock()
        looked = operands(loss)
        is_near = False
        for operand, share in zip(looked, shares(looked)):
            if share is not None and share > 0:
                is_near |= self._note(training, window, operand, share)
        self._spent += clock() - start
        self.is_due = is_near and self._has_time()

    def _note(self, training: Warns, window: Window, operand: Operand, share: float) -> bool:
        """Whether this operator is on its way to its limit."""
        key, step = operand.key, window.step
        points = self._points[key]
        if points and points[-1][0] >= step:
            return False
        has_risen = share >= NEAR and (not points or share > points[-1][1])
        points.append((step, share))
        if not has_risen or key in self._told:
            return False
        left = steps_left(points)
        if left is not None:
            self._tell(training, window, operand, left)
        return True

    def _find_place(self, training: Warns, window: Window, operand: Operand) -> Frame | None:
        """The operator's line: noted by the script's own anomaly mode, or the only one in the source."""
        recorded = operand.node.metadata.get("traceback_")
        if recorded:
            return place_from_traceback(recorded).user
        own = getattr(window.batches[0].loss_fn, "__code__", None)
        others = [own, *(f.f_code for f in calling_frames(sys._getframe(1)))]
        modules = [m for root in training.state.roots.values() for m in root.modules()]
        return line_of(operand.op, codes_of(modules, others))

    def _tell(self, training: Warns, window: Window, operand: Operand, left: float) -> None:
        """Warn once of each operator, and once of each line."""
        place = self._find_place(training, window, operand)
        is_known = place in self._told
        self._told |= {operand.key} if place is None else {operand.key, place}
        if is_known:
            return
        training.warn(
            Event(
                step=window.step, epoch=window.epoch, kind="headroom", value=left, phase="forward",
                symptom="output", name=_name(operand, place), lr=training.state.lrs(),
                message=self._text(operand, place, left),
            )
        )  # fmt: skip

    def _text(self, operand: Operand, place: Frame | None, left: float) -> str:
        points = self._points[operand.key]
        dtype = str(operand.tensor.dtype).removeprefix("torch.")
        what, verb = "largest value", "leaves the range of"
        if operand.is_at_zero:
            what, verb = "smallest argument", "is 0 in"
        unit = operand.log_limit / operand.power
        first, last = (math.exp(points[i][1] * unit) for i in (0, -1))
        num_left = max(1, math.ceil(left))
        source = f" `{place.source}`" if place is not None and place.source else ""
        return (
            f"{_name(operand, place)}{source}: its {what} has gone from {first:.3g} to {last:.3g} in "
            f"{points[-1][0] - points[0][0]} steps: at this pace it {verb} {dtype} "
            f"in about {num_left} step{'s' if num_left != 1 else ''}; " + _advice(operand)
        )

    def forget(self) -> None:
        """The training was rolled back."""
        self._points.clear()

    def close(self) -> None:
        """Look no more: the training is over, or its operators cannot be looked at."""
        self.is_due, self._spent = False, math.inf


def _advice(operand: Operand) -> str:
    if operand.is_at_zero:
        return _AT_ZERO
    return _EXPONENTIAL if operand.op.startswith("exp") else _AT_TOP


def _name(operand: Operand, place: Frame | None) -> str:
    return operand.op if place is None else f"{operand.op} at {short_path(place.file)}:{place.line}"
