"""Notices a step that the script itself leaves out because of a bad value: `if torch.isnan(loss): continue`.

Such a script has its own protection and still wants to know the line. Nothing is read from a device before something is
out of the ordinary: a batch that was followed by no step.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ...numerics.health import is_finite
from ...parsing import parsed
from ..engine import Engine
from ..frames import calling_frames, variables
from ..saved_state import SmallStateCopy
from ..window import Failure, Window
from .bad_steps import BadSteps
from .batch_tracker import BatchTracker
from .scaling import Scaling

__all__ = ["OwnSkips"]


class OwnSkips:
    """Finds the failure behind a step that never came.

    `refuse` handles the failure like that of a step which was about to be applied.
    """

    def __init__(
        self,
        engine: Engine,
        tracker: BatchTracker,
        bad_steps: BadSteps,
        scaling: Scaling,
        refuse: Callable[[Window, Failure], None],
    ) -> None:
        self._engine, self._tracker, self._bad_steps = engine, tracker, bad_steps
        self._scaling, self._refuse = scaling, refuse

    def over_by(self, loader: Any) -> Window | None:
        """The window that the script has left without its step, after that was handled as bad; None otherwise."""
        window, engine = self._tracker.window, self._engine
        if (
            window is None
            or window.num_attempted
            or engine.replay is not None
            or engine.settings.deferred
            or engine.has_world
            or not torch.is_grad_enabled()
            or not window.batches[-1].is_from(loader)
        ):
            return None
        is_part = window.num_backward > 0 and not window.batches[-1].is_used
        is_over = window.num_backward > 0 and not is_part
        failure = self._after_backward(window) if is_over else self._before_it(window)
        if failure is None:
            return None
        if is_part:
            self._leave_part_out(window, failure)
            return None
        self._tracker.note_used(window)
        window.num_attempted += 1
        window.is_left_out_by_script = True
        self._handle(window, failure)
        return window

    def _leave_part_out(self, window: Window, failure: Failure) -> None:
        """One batch of several that are accumulated: the others go on towards their step."""
        last = window.batches.pop()
        part = Window([last], last.rng, window.lrs)
        part.live_loss, part.num_attempted, part.is_left_out_by_script = window.live_loss, 1, True
        last.is_used = True
        self._handle(part, failure)
        self._bad_steps.put_back()

    def _handle(self, window: Window, failure: Failure) -> None:
        """The script goes on as it would alone, unless the policy did more than to leave the step out."""
        engine = self._engine
        left, num_before = SmallStateCopy.take(engine.state), len(engine.incidents)
        self._refuse(window, failure)
        if all(i.action.kind == "skipped" for i in engine.incidents[num_before:]):
            self._bad_steps.undo = [left.restore, engine.state.buffers.restore_bad]

    def _after_backward(self, window: Window) -> Failure | None:
        """Gradient accumulation takes no step either, but it neither clips nor drops its gradients."""
        is_clipped = window.norm is not None
        if not is_clipped and not self._has_dropped_gradients():
            return None
        loss = window.losses[-1][1] if window.losses else None
        if loss is not None and not is_finite(loss):
            return Failure("loss", window.step, value=float(loss))
        norm = window.norm
        if norm is None or is_finite(norm):
            return None
        if self._scaling.pair is not None:
            return self._scaling.failure_of_skip(window)
        found = self._engine.explain(window, list(self._engine.state.optimizers))
        return found or Failure("gradient", window.step, value=float(norm))

    def _has_dropped_gradients(self) -> bool:
        optimizers = self._engine.state.optimizers
        firsts = [p for o in optimizers for g in o.param_groups[:1] for p in g["params"][:1]]
        return bool(firsts) and all(p.grad is None for p in firsts)

    def _before_it(self, window: Window) -> Failure | None:
        """No backward came: a loss in the variables of the loop that is not finite and was not told yet."""
        for value in _losses_of(sys._getframe(1)):
            if value is not self._bad_steps.last_loss() and not is_finite(value):
                window.live_loss = weakref.ref(value)
                return Failure("loss", window.step, value=float(value.detach()))
        return None


def _losses_of(frame: FrameType | None) -> list[Tensor]:
    """The scalars with a graph among the variables of the loop that asks for its next batch, if it is one that trains."""
    frames = calling_frames(frame, 1)
    if not frames or not _trains(frames[0].f_code.co_filename, frames[0].f_lineno):
        return []
    values = variables(frames[0]).values()
    return [v for v in values if type(v) is Tensor and v.numel() == 1 and v.grad_fn is not None]


@functools.lru_cache(maxsize=64)
def _trains(file: str, line: int) -> bool:
    """Whether the loop at this line calls a `backward`: a figure of an evaluation is nobody's loss."""
    try:
        tree = parsed("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return False
    loops = [
        n for n in ast.walk(tree) if isinstance(n, ast.For) and n.lineno <= line < n.body[0].lineno
    ]
    return any(
        isinstance(n, ast.Attribute) and n.attr == "backward"
        for loop in loops
        for n in ast.walk(loop)
    )
