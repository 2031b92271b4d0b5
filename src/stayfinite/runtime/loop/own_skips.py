"""Batches that a loop leaves out by itself because of a value that is not finite: `if torch.isnan(loss): continue` or
`break`, or the same after a bad norm of the gradients.

The script keeps its way, but the origin of the value is reported: it is the same fault in every epoch. Nothing is read unless a
batch was drawn and not trained on, and then only what the loop has just computed and looked at itself.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torch import Tensor

from ...detect.check import number_of
from ...errors import StayfiniteError
from ...locate.frames import is_user_file
from ...numerics.health import is_finite
from ..engine import Engine
from ..frames import calling_frames, variables
from ..weak import reference
from ..window import Failure, Window
from .bad_steps import BadSteps
from .batch_tracker import BatchTracker
from .loop_source import has_backward, is_way_out, made_in_loop, way_on

__all__ = ["OwnSkips"]


class OwnSkips:
    """Reports the batches that loops leave out because of their loss or the norm of their gradients."""

    def __init__(self, engine: Engine, bad: BadSteps, tracker: BatchTracker) -> None:
        self._engine, self._bad_steps, self._tracker = engine, bad, tracker
        self._last: Callable[[], Tensor | None] = lambda: None
        """The last such loss: a variable keeps it until the next is computed."""
        self._watched: Any = None
        self._began = 0
        """The number of batches when the last loop began."""
        self._thread_id = threading.get_ident()

    def watch(self, loader: Any, iterator: Any) -> None:
        """A loop begins: if it is left by a `break` or a `return`, its iterator is let go of right there."""
        source = reference(loader)
        if iterator is None or self._engine.has_world:
            return
        me = weakref.ref(self)

        def left(_: Any) -> None:
            mine = me()
            if mine is not None and threading.get_ident() == mine._thread_id:
                with contextlib.suppress(StayfiniteError):  # the loop has been left already
                    mine._bad_steps.firewall.once(mine.look, source(), True)

        self._began = self._tracker.num_batches
        self._watched = weakref.ref(iterator, left)

    def look(self, loader: Any, is_left: bool = False) -> None:
        """The loop asks for its next batch, or is left: has it left the last one out because of its loss?

        A loader that the loop has made for itself (`for x in DataLoader(...)`) is gone already when the loop is left.
        """
        window = self._tracker.window
        if window is None or self._engine.replay is not None or not _is_untrained(window, loader):
            return
        if window.batches[-1].is_used:
            self._look_at_gradients(window)
            return
        frame = next(_user_frames(sys._getframe(1)), None)
        name = None if frame is None else self._bad_loss(frame, loader, is_left)
        if frame is None or name is None:
            return
        loss = variables(frame)[name]
        if loss is self._last():
            return
        self._last = weakref.ref(loss)
        # One of several batches that are accumulated: the others go on to their step.
        if window.num_backward:
            last = window.batches.pop()
            window = Window([last], last.rng, window.lrs)
        step = self._tracker.note_used(window)
        window.losses = [(step, loss.detach())]
        at = None if is_left else way_on(frame.f_code.co_filename, frame.f_lineno, name)
        window.left_at = None if at is None else (frame.f_code, at)
        self._report(window, Failure("loss", step, value=number_of(loss)))

    def _report(self, window: Window, failure: Failure) -> None:
        window.is_left_by_script = True
        window.num_attempted += 1
        window.small_state = self._engine.state.capture_small()
        window.failure = failure
        self._bad_steps.handle(window, failure)
        self._bad_steps.undo.clear()
        self._tracker.close(window)

    def _look_at_gradients(self, window: Window) -> None:
        """A norm was computed after the backward and no step followed; accumulation alone computes none.

        With a GradScaler, such a norm is how it finds its scale.
        """
        if window.norm is None or self._engine.state.is_scaled or is_finite(window.norm):
            return
        found = self._engine.explain(window, list(self._engine.state.optimizers))
        norm = number_of(window.norm)
        self._report(window, found or Failure("gradient", window.step, value=norm))

    def _bad_loss(self, frame: FrameType, loader: Any, is_left: bool) -> str | None:
        """The name of the loss among the variables that the loop binds."""
        file, line = frame.f_code.co_filename, frame.f_lineno
        if is_left and not is_way_out(file, line):
            return None  # by an exception, which is looked at where it ends the script
        number = self._tracker.num_batches
        is_gone = loader is None
        has_trained = number > self._began if is_gone else self._tracker.has_trained(loader)
        if not has_trained and not has_backward(file, line, is_left):
            return None  # an evaluation
        known = variables(frame)
        found = [(n, known[n]) for n in made_in_loop(file, line, is_left) if n in known]
        losses = [
            (n, t) for n, t in found if isinstance(t, Tensor) and t.numel() == 1 and t.grad_fn
        ]
        # No device is waited for, except where the loop itself has left out a batch of its training.
        bad = [n for n, t in losses if (t.is_cpu or has_trained) and not is_finite(t)]
        return bad[-1] if bad else None


def _user_frames(frame: FrameType) -> Iterator[FrameType]:
    return (f for f in calling_frames(frame) if is_user_file(f.f_code.co_filename))


def _is_untrained(window: Window, loader: Any) -> bool:
    is_of_loader = not window.is_loaderless and window.batches[-1].is_from(loader)
    return is_of_loader and not window.num_attempted
