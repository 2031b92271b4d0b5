"""The fast path of an ordinary iteration: one call each for the batch, the backward and the step.

PyTorch's kernels evict our code from the processor's caches between two steps, so the cost of a healthy step is the
number of different functions that it calls. Each method here first tests all conditions of the ordinary case. If one does
not hold, it returns without any effect, and the general method of the driver does the work.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..engine import Engine
from ..window import BatchRef, Failure, Phase, Window
from .batch_tracker import BatchTracker, whole
from .scaling import Scaling

__all__ = ["OrdinaryIteration"]

_INF = float("inf")
_PLACE_EVERY = 8
"""The place of the step is noted every so many steps; deep checks, which use it, are not more frequent."""
_num_function_modes = torch._C._len_torch_function_stack
_num_dispatch_modes = torch._C._len_torch_dispatch_stack


class _Driver(Protocol):
    """The attributes of the driver that are used here."""

    engine: Engine
    tracker: BatchTracker
    scaling: Scaling
    phase: Phase
    is_internal: bool
    was_stepped: bool
    stepped_here: set[int]
    own_updates: Any

    def before_window(self) -> None: ...

    def leave_out(self, window: Window, failure: Failure) -> bool: ...


class OrdinaryIteration:
    """One batch of one loader, one scalar loss, one optimizer; no scaler, no ranks, no closure."""

    def __init__(self, driver: _Driver, investigate: Callable[[Window, Failure], object]) -> None:
        engine = driver.engine
        self._driver, self._engine, self._tracker = driver, engine, driver.tracker
        self._state, self._scaling = engine.state, driver.scaling
        self._scalers = engine.state.scalers
        self._optimizers = engine.state.optimizers
        self._note_place, self._compare = engine.step_place.note, engine.lookout.compare
        self._steps_to_place = 0
        """Steps until the place of the step is noted again."""
        self._check_on_host = engine.checker.check_on_host
        self._investigate = investigate
        self._is_deferred = engine.settings.deferred

    def is_over_by(self, loader: Any) -> bool:
        """The loop asks this loader for its next batch: close the window; False if it is not ordinary."""
        tracker = self._tracker
        window = tracker.window
        if (
            window is None
            or window.num_applied != 1
            or window.failure is not None
            or window.is_moved
            or len(window.batches) != 1
            or self._driver.is_internal
            or tracker.other is not None
            or self._scalers.refs
        ):
            return False
        last = window.batches[0]
        if not last.is_used or len(last.items) != 1 or last.items[0][0]() is not loader:
            return False
        tracker.window = None
        tracker.trained.add(id(loader))
        if last.step >= tracker.num_batches:
            tracker.num_batches = last.step + 1
        self._driver.phase = Phase.FORWARD
        failure = self._engine.close_healthy(window)
        if failure is not None:
            self._investigate(window, failure)
        return True

    def takes_batch(self, loader: Any, batch: Any, indices: Any) -> bool:
        """Open a window with the next batch of the same loader; False if it is not ordinary."""
        tracker, driver, engine = self._tracker, self._driver, self._engine
        source = tracker.epoch_of
        if (
            source is None
            or source() is not loader
            or tracker.window is not None
            or driver.is_internal
            or engine.replay is not None
            or engine.recovery.left_out.drops
        ):
            self._steps_to_place = 0
            return False
        driver.before_window()
        driver.phase = Phase.FORWARD
        rng = engine.open()
        is_plain = type(batch) is Tensor or type(batch) is tuple
        item = (source, batch if is_plain else whole(batch))
        ref = BatchRef(tracker.num_batches, tracker.epoch_now, [item], rng)
        ref.indices = indices
        if self._state.companions.holders:
            self._state.companions.note()
        tracker.window = Window([ref], rng, self._state.lrs())
        return True

    def takes_backward(self, loss: Any) -> bool:
        """Note the loss of a window's first backward; False if it is not ordinary."""
        window, driver = self._tracker.window, self._driver
        if (
            window is None
            or window.num_backward
            or window.is_loaderless
            or type(loss) is not Tensor
            or driver.is_internal
            or driver.own_updates is not None
            or driver.phase is Phase.OVER
            or self._engine.replay is not None
            or self._tracker.other is not None
            or self._scaling.pair is not None
            or self._engine.has_world
            or _num_function_modes()
            or _num_dispatch_modes()
            or loss.numel() != 1
        ):
            return False
        last = window.batches[-1]
        last.is_used = True
        # Like `detach`, but without calling an operator.
        window.losses.append((last.step, loss.data))
        window.live_loss = weakref.ref(loss)
        window.num_backward = 1
        return True

    def may_step(self, optimizer: Any) -> bool | None:
        """Check a step; False if it must not be applied, None if it is not ordinary."""
        window, driver = self._tracker.window, self._driver
        refs: list[Any] = self._optimizers.refs
        if (
            window is None
            or window.num_attempted
            or window.ahead
            or window.is_loaderless
            or window.failure is not None
            or len(window.losses) != 1
            or len(refs) != 1
            or refs[0]() is not optimizer
            or driver.is_internal
            or driver.phase is Phase.OVER
            or self._is_deferred
            or self._engine.has_world
            or self._engine.replay is not None
            or self._scaling.pair is not None
            or "found_inf" in optimizer.__dict__
            or _num_function_modes()
            or _num_dispatch_modes()
        ):
            return None
        grads: list[Tensor] = []
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if type(rate) is not float or not -_INF < rate < _INF:
                return None
            grads += [g for p in group["params"] if (g := p.grad) is not None]
        figures = self._check_on_host(grads, window.losses[0][1], window.norm)
        if figures is None:
            return None
        driver.was_stepped = True
        driver.stepped_here.add(id(optimizer))
        window.num_attempted = 1
        if self._steps_to_place:
            self._steps_to_place -= 1
        else:
            self._note_place()
            self._steps_to_place = _PLACE_EVERY - 1
        window.is_seen = True
        window.loss = figures[0]
        window.losses = []  # with the graph that hangs on it
        failure = self._compare(window, *figures)
        return True if failure is None else driver.leave_out(window, failure)
