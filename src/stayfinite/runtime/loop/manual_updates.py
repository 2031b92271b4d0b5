"""Trainings without a torch optimizer: the script applies its gradients itself.

Its updates cannot be prevented. Loss and gradients are checked where they are computed, and parameters that a bad update
changed in place are restored before the next step. Other effects of the script stay.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ...detect.check import number_of
from ...numerics.health import is_finite
from ..batches import named_tensors
from ..engine import Engine
from ..frames import calling_frames, variables
from ..graph import leaves_of
from ..window import Failure, Window
from .loaderless import Loaderless

__all__ = ["ManualUpdateDriver", "ManualUpdates", "TrainedTensors"]

_MARKED = 4
_NOT_HELD = (
    "the script applies its gradients by itself, without a torch optimizer, so this update could not be "
    "held back"
)
_PUT_BACK = (
    f"{_NOT_HELD}; the {{}} trained tensors go back to what they were {{}}; what else the script "
    "keeps (a momentum, a count of steps) is as its own update leaves it"
)
_AT_BATCH = "when the loop asks for its next batch"
_AT_CALL = "when the model is called next"
_MADE_ANEW = (
    f"{_NOT_HELD}: the weights that it computes from these gradients are new tensors of its own, and "
    "they are not finite from here on"
)
_GONE = (
    "what the script trains is not finite any more, and no later step can help; it has no torch optimizer, "
    "so its update could not be held back"
)
_LEFT = f"{_NOT_HELD}: the tensors that it trains are not finite from here on"


class TrainedTensors:
    """Takes the place of an optimizer: weak references to the tensors that are trained."""

    def __init__(self) -> None:
        self._refs: list[weakref.ref[Tensor]] = []
        self._names: list[str] = []
        self.state: dict[Any, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Like those of an optimizer, without a learning rate."""
        alive = [(t, n) for r, n in zip(self._refs, self._names) if (t := r()) is not None]
        return [{"params": [t for t, _ in alive], "param_names": [n for _, n in alive]}]

    @property
    def tensors(self) -> list[Tensor]:
        return [t for ref in self._refs if (t := ref()) is not None]

    def set(self, tensors: Sequence[Tensor], frame: FrameType | None) -> None:
        self._refs = [weakref.ref(t) for t in tensors]
        found = _names_of(tensors, frame)
        self._names = [found.get(id(t), f"tensor{i}") for i, t in enumerate(tensors)]


class ManualUpdateDriver(Protocol):
    """The parts of the loop driver that are used here."""

    engine: Engine
    loaderless: Loaderless

    def window_now(self) -> Window: ...

    def window_for(self, optimizer: Any) -> Window: ...

    def refuse(self, window: Window, failure: Failure) -> None: ...

    def undo_only(self, undo: Callable[[], None] | None) -> None: ...

    def end_refused(self, window: Window) -> None: ...

    def on_step_done(self, optimizer: Any, is_done: bool) -> None: ...

    def on_trained(self, trained: Any) -> None: ...


class ManualUpdates:
    """Checks the losses and gradients of such a training."""

    def __init__(self, driver: ManualUpdateDriver) -> None:
        self._driver = weakref.ref(driver)
        self._trained = TrainedTensors()
        self._shapes: list[torch.Size] = []
        self._is_repeated = False
        """Whether tensors of the same shapes were trained more than once, which makes it a training."""
        self._is_in_place = True
        self._is_stale = True
        self._is_lost = False
        """Whether an update that is not finite was reported and could not be undone."""
        self._has_failed = False
        self._marks: list[Any] = []
        self._hook: Any = None

    def begin(self, loss: Tensor) -> None:
        """Before a backward: note the tensors that it trains."""
        if self._is_stale or not self._trained.tensors:
            self._note(list(leaves_of([loss]))[::-1], sys._getframe(1))
        driver = self._driver()
        if driver is not None and self._marks and self._marks == self._marks_now():
            driver.loaderless.same_iteration(
                self._trained
            )  # gradients are added up, or a graph is used again

    def check_gradients(self) -> None:
        """After a backward: check the gradients."""
        pairs = [(p, p.grad) for p in self._trained.tensors if p.grad is not None]
        if not pairs:
            self._is_stale = True  # others were trained
            return
        self._check([g for _, g in pairs if g is not None], [p for p, _ in pairs])

    def begin_grad(self, loss: Tensor, inputs: Sequence[Any]) -> bool:
        """Before `torch.autograd.grad`: note its tensors; returns whether it is part of a training."""
        leaves = [t for t in inputs if isinstance(t, Tensor) and t.is_leaf and _is_trainable(t)]
        if not leaves or len(leaves) != len(inputs):
            return False
        self._note(leaves, sys._getframe(1))
        return True

    def check_results(self, grads: Iterable[Any]) -> None:
        """After `torch.autograd.grad`: check the gradients."""
        self._check([g for g in grads if isinstance(g, Tensor)], self._trained.tensors)

    def on_func_grad(self, given: Any, results: tuple[Any, Any], call: Callable[[], Any]) -> None:
        """After `torch.func.grad` or `grad_and_value`: check the gradients. Its function can be replayed."""
        self._note([t for _, t in named_tensors(given)], sys._getframe(1), is_in_place=False)
        driver, window = self._now()
        grads, value = results
        loss = value[0] if isinstance(value, tuple) else value
        tensors = [t for _, t in named_tensors(grads)]
        window.closure = lambda: _results(driver.engine, call())
        if isinstance(loss, Tensor) and loss.numel() == 1:
            window.losses.append((window.step, loss.detach()))
        self._check(tensors, self._trained.tensors)
        window.closure = None

    @property
    def _is_training(self) -> bool:
        return self._is_repeated or any(isinstance(t, nn.Parameter) for t in self._trained.tensors)

    def _marks_now(self) -> list[Any]:
        """A fingerprint of the tensors that changes with an update.

        Version counters, and some values, because `p.data.add_` does not change the counter. Nothing is read from a
        device.
        """
        found: list[Any] = []
        for i, t in enumerate(self._trained.tensors):
            found.append((id(t), t._version))
            if i < _MARKED and t.is_cpu and t.layout == torch.strided and t.numel():
                flat = t.detach().reshape(-1)
                found += [float(flat[j].abs()) for j in (0, t.numel() // 2, -1)]
        return found

    @property
    def _is_whole(self) -> bool:
        return all(is_finite(t) for t in self._trained.tensors)

    def _now(self) -> tuple[ManualUpdateDriver, Window]:
        driver = self._driver()
        assert driver is not None
        window = driver.window_now()
        window.manual_update = window.manual_update or _MADE_ANEW
        return driver, window

    def _note(
        self, tensors: Sequence[Tensor], frame: FrameType | None, is_in_place: bool = True
    ) -> None:
        """Note the tensors that are trained now. If they are new each time, updates cannot be undone."""
        driver = self._driver()
        known = {id(t) for t in self._trained.tensors}
        shapes = [t.shape for t in tensors]
        is_same = bool(known) and all(id(t) in known for t in tensors)
        if self._shapes:
            self._is_in_place = is_in_place and is_same
            self._is_repeated |= shapes == self._shapes
        self._is_stale = False
        self._shapes = shapes
        if not is_same and driver is not None:
            self._trained.set(tensors, frame)
            driver.on_trained(self._trained)

    def _check(self, grads: list[Tensor], trained: list[Tensor]) -> None:
        """Check after the backward, before the script applies the gradients."""
        driver, window = self._now()
        driver.window_for(self._trained)
        failure = self._failure(driver, window, grads, trained) if self._is_training else None
        self._is_repeated = True
        if failure is None:
            self._leave_hook()  # the script itself has skipped the bad update
        was_reported = self._has_failed and self._marks == self._marks_now()
        self._marks = self._marks_now()
        if was_reported:
            window.failure = failure
        is_lost = self._is_lost and failure is not None and not self._is_whole
        self._has_failed = failure is not None
        if is_lost:
            window.failure = failure  # a consequence of the reported failure
            driver.engine.recovery.give_up(_GONE)
        elif window.failure is None and failure is not None:
            self._refuse(driver, window, failure)
        if window.failure is None:
            driver.on_step_done(self._trained, True)
        else:
            driver.end_refused(window)

    def _failure(
        self, driver: ManualUpdateDriver, window: Window, grads: list[Tensor], trained: list[Tensor]
    ) -> Failure | None:
        """Checked on the CPU only; tensors on a device wait for the deep checks."""
        if not all(g.is_cpu for g in grads):
            return None
        losses = [t for _, t in window.losses]
        if driver.engine.checker.check(grads, losses) is not None:
            return None
        for step, loss in window.losses:
            if not is_finite(loss):
                return Failure("loss", step, value=number_of(loss))
        bad = next((i for i, g in enumerate(grads) if not is_finite(g)), None)
        if bad is None:
            return None
        is_paired = len(trained) == len(grads)
        name = driver.engine.state.name_of(trained[bad]) if is_paired else None
        return Failure("gradient", window.step, name=name)

    def _refuse(self, driver: ManualUpdateDriver, window: Window, failure: Failure) -> None:
        """Investigate now, before the script applies the update."""
        undo = self._plan(window)
        # A retained graph must not notice that its tensors were written to.
        with _unsafe_preserve_version_counter(tuple(self._trained.tensors)):
            driver.refuse(window, failure)
        driver.undo_only(None if window.is_loaderless else undo)
        self._is_lost = undo is None
        if undo is None:
            driver.engine.log.clear()  # the tensors are about to become bad, which was reported
        if undo is not None and window.is_loaderless:
            self._put_back_at_call(driver, undo)

    def _plan(self, window: Window) -> Callable[[], None] | None:
        """The function that restores the current tensors after the update, if that is possible."""
        tensors = self._trained.tensors
        if not self._is_in_place:
            window.manual_update = _MADE_ANEW
            return None
        has_model = any(isinstance(t, nn.Parameter) for t in tensors)
        if (window.is_loaderless and not has_model) or not self._is_whole:
            window.manual_update = _LEFT
            return None
        when = _AT_CALL if window.is_loaderless else _AT_BATCH
        window.manual_update = _PUT_BACK.format(len(tensors), when)
        window.is_reverted = True
        kept = [(t, t.detach().clone()) for t in tensors]

        @torch.no_grad()
        def undo() -> None:
            for live, copy in kept:
                if not torch.equal(live, copy):  # do not write needlessly: a graph may still use it
                    live.detach().copy_(copy)

        return undo

    def _put_back_at_call(self, driver: ManualUpdateDriver, undo: Callable[[], None]) -> None:
        """Undo the update when the next step begins: at the first call of a module."""
        self._leave_hook()

        def on_call(module: nn.Module, args: Any) -> None:
            if driver.engine.replay is None and self._marks != self._marks_now():
                self._leave_hook()
                undo()

        self._hook = nn.modules.module.register_module_forward_pre_hook(on_call)

    def _leave_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def close(self) -> None:
        """Remove the hook."""
        self._leave_hook()


def _results(engine: Engine, results: tuple[Any, Any]) -> None:
    """Pass the results of a replayed function to its replay."""
    grads, value = results
    loss = value[0] if isinstance(value, tuple) else value
    if engine.replay is not None:
        engine.replay.check_results(loss, [t for _, t in named_tensors(grads)])


def _is_trainable(tensor: Tensor) -> bool:
    return tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())


def _names_of(tensors: Sequence[Tensor], frame: FrameType | None) -> dict[int, str]:
    """The script's names for these tensors, by id."""
    wanted = {id(t) for t in tensors}
    found: dict[int, str] = {}
    for each in calling_frames(frame)[:8]:
        for name, value in variables(each).items():
            if name.startswith("__") or isinstance(value, nn.Module):
                continue
            if not isinstance(value, (Tensor, list, tuple, dict)):
                continue
            for label, tensor in named_tensors(value, name):
                if id(tensor) in wanted:
                    found.setdefault(id(tensor), label)
    return found
