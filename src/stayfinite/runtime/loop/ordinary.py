"""The short way of an ordinary iteration: one call each for its end, its batch, its backward and its step.

PyTorch's kernels evict our code and our objects from the processor's caches between two steps, so the cost of a healthy
step is the number of different functions and objects that it uses. Therefore `begin` tests once all conditions of the
ordinary case. They are tested again when something has changed (`TrainState.num_changes`), and after eight steps at the
latest. Each other method returns without any effect if something is not ordinary, and the general method of the driver
does the work.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ...patches.provenance import provenance
from ..engine import Engine
from ..window import BatchRef, Failure, Window
from .batch_tracker import BatchTracker, whole
from .loaderless import Loaderless
from .scaling import Scaling

__all__ = ["OrdinaryIteration"]

_INF = float("inf")
_NEVER = -1
_num_function_modes = torch._C._len_torch_function_stack
_num_dispatch_modes = torch._C._len_torch_dispatch_stack


class _Driver(Protocol):
    """The attributes of the driver that are used here."""

    engine: Engine
    tracker: BatchTracker
    loaderless: Loaderless
    scaling: Scaling
    is_over: bool
    is_internal: bool
    stepped_here: set[int]
    manual_updates: Any

    def before_window(self) -> None: ...

    def leave_out(self, window: Window, failure: Failure) -> bool: ...


class OrdinaryIteration:
    """One batch of one loader or none, one scalar loss, one optimizer; no scaler, no ranks, no closure."""

    def __init__(self, driver: _Driver, investigate: Callable[[Window, Failure], object]) -> None:
        engine = driver.engine
        self._driver, self._engine, self._tracker = driver, engine, driver.tracker
        self._state, self._rng = engine.state, engine.rng
        self._compare, self._check_on_host = engine.monitor.compare, engine.checker.check_on_host
        self._investigate = investigate
        self._operators, self._look = engine.monitor.operators, engine.monitor.look
        self._seen = _NEVER
        """`num_changes` when all conditions held."""
        self._source: Callable[[], Any] = lambda: None
        """Returns the loader whose batches are trained on."""
        self._optimizer: Callable[[], Any] = lambda: None
        self._at_opening: list[Callable[[], None]] = []
        """Called before each window opens."""
        self._is_place_known = False
        """Whether the place of the step was noted since `begin`."""
        self._is_loaderless = False

    def begin(self, loader: Any) -> None:
        """A window was opened with a batch of this loader; test whether it is ordinary, and those that follow."""
        self._seen = _NEVER
        source = self._tracker.epoch_of
        is_known = source is not None and source() is loader and self._tracker.is_trained(loader)
        if is_known and self._is_ordinary():
            self._source, self._is_loaderless = source, False
            self._hold()

    def begin_loaderless(self, window: Window) -> Window:
        """The same for a window without a loader, which is returned."""
        self._seen = _NEVER
        if not self._driver.loaderless.is_close and self._is_ordinary():
            self._source, self._is_loaderless = _no_loader, True
            self._hold()
        return window

    def _is_ordinary(self) -> bool:
        driver, engine, state = self._driver, self._engine, self._state
        optimizers = state.optimizers.refs
        return not (
            driver.is_internal
            or driver.is_over
            or driver.manual_updates is not None
            or engine.settings.deferred
            or self._tracker.other is not None
            or len(optimizers) != 1
            or id(optimizers[0]()) not in driver.stepped_here
            or driver.scaling.pair is not None
            or any(s.is_enabled() for s in state.scalers)
            or not engine.is_quiet
        )

    def _hold(self) -> None:
        """All conditions hold now."""
        state = self._state
        self._optimizer = state.optimizers.refs[0]
        self._is_place_known = False
        self._at_opening = []
        if state.buffers.is_needed:
            self._at_opening.append(state.buffers.copy)
        if state.companions.holders:
            self._at_opening.append(state.companions.note)
        if self._engine.carried.is_needed:
            self._at_opening.append(self._engine.carried.note)
        self._seen = state.num_changes

    def is_over_by(self, loader: Any) -> bool:
        """The loop asks this loader for its next batch: close the window; False if it is not ordinary."""
        tracker = self._tracker
        window = tracker.window
        if (
            window is None
            or window.num_applied != 1
            or self._state.num_changes != self._seen
            or self._source() is not loader
        ):
            return False
        tracker.window = None
        tracker.num_batches = window.batches[0].step + 1
        if not self._engine.log_step(window):
            self._check_deeply(window)
        return True

    def is_over_by_step(self, window: Window) -> bool:
        """The step of a window without a loader was applied: close it; False if it is not ordinary."""
        if (
            not self._is_loaderless
            or window.num_applied != 1
            or self._state.num_changes != self._seen
            or window.failure is not None
        ):
            return False
        self._tracker.window = None
        if self._engine.log_step(window):
            for prepare in self._at_opening:
                prepare()
            self._driver.loaderless.rng = self._rng.capture()
        else:
            self._check_deeply(window)
            self._driver.loaderless.after_step()
        return True

    def _check_deeply(self, window: Window) -> None:
        """It is time to read the clock, and to test the conditions again."""
        self._seen = _NEVER
        failure = self._engine.check_deeply_if_due(window)
        if failure is not None:
            self._investigate(window, failure)

    def takes_batch(self, loader: Any, batch: Any, indices: Any) -> bool:
        """Open a window with the next batch of the same loader; False if it is not ordinary."""
        tracker, source, state = self._tracker, self._source, self._state
        if (
            state.num_changes != self._seen
            or tracker.window is not None
            or source() is not loader
            or provenance.has_averages
        ):
            return False
        for prepare in self._at_opening:
            prepare()
        rng = self._rng.capture()
        ref = BatchRef(tracker.num_batches, tracker.epoch_now, [(source, whole(batch))], rng)
        ref.indices = indices
        tracker.window = Window([ref], rng, state.lrs())
        return True

    def takes_backward(self, loss: Any) -> bool:
        """Note the loss of a window's first backward; False if it is not ordinary."""
        window = self._tracker.window
        if (
            self._state.num_changes != self._seen
            or (
                window is None or window.num_backward
                if not self._is_loaderless
                else window is not None
            )
            or type(loss) is not Tensor
            or _num_function_modes()
            or _num_dispatch_modes()
            or loss.numel() != 1
        ):
            return False
        if window is None:
            window = self._open_loaderless(loss)
            if window is None:
                return False
        if self._operators.is_due:
            self._look(window, loss)
        ref = window.batches[0]
        ref.is_used = True
        # Like `detach`, but without calling an operator.
        window.losses.append((ref.step, loss.data))
        window.live_loss = weakref.ref(loss)
        window.num_backward = 1
        return True

    def _open_loaderless(self, loss: Tensor) -> Window | None:
        """A window without a loader opens with its backward; None for a loss that is not finite, or not on the host."""
        if not loss.is_cpu or loss.is_complex() or not -_INF < loss.item() < _INF:
            return None
        tracker, loaderless = self._tracker, self._driver.loaderless
        if loaderless.stepped:
            loaderless.begin_next()
        ref = BatchRef(tracker.num_batches, 0, [])
        window = Window([ref], loaderless.rng, self._state.lrs())
        window.is_loaderless = True
        tracker.window = window
        return window

    def may_step(self, optimizer: Any) -> bool | None:
        """Check a step; False if it must not be applied, None if it is not ordinary."""
        window = self._tracker.window
        if (
            window is None
            or self._state.num_changes != self._seen
            or self._optimizer() is not optimizer
            or window.num_attempted
            or len(window.losses) != 1
            or "found_inf" in optimizer.__dict__
            or _num_function_modes()
            or _num_dispatch_modes()
        ):
            return None
        grads: list[Tensor] = []
        with torch._C.DisableTorchFunctionSubclass():  # as in `outside_user_code`
            for group in optimizer.param_groups:
                rate = group.get("lr")
                if type(rate) is not float or not -_INF < rate < _INF:
                    return None
                grads += [g for p in group["params"] if (g := p.grad) is not None]
            figures = self._check_on_host(grads, window.losses[0][1], window.norm)
        if figures is None:
            return None
        window.num_attempted = 1
        if self._is_loaderless:
            self._driver.loaderless.stepped.add(id(optimizer))
        if not self._is_place_known:
            self._engine.step_place.note()
            self._is_place_known = True
        window.is_seen = True
        window.loss = figures[0]
        window.losses = []  # with the graph that hangs on it
        failure = self._compare(window, *figures)
        return True if failure is None else self._driver.leave_out(window, failure)


def _no_loader() -> None:
    """Takes the place of a reference to a loader."""
