"""Optimizers that call their closure: once (Lightning) or many times (LBFGS, SAM).

The optimizer calls the closure when it likes, at weights of its choice. Each evaluation is checked. A bad one ends the
step, and the optimizer's changes so far are undone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ..patches.firewall import Firewall
from .engine import Engine
from .saved_state import OptimizerCopy, SearchPoint
from .window import Failure, Window

__all__ = ["Abort", "ClosureDriver", "ClosureSteps", "moves_before_closure"]


class Abort(Exception):
    """Raised to leave an optimizer in the middle of its step."""


class ClosureDriver(Protocol):
    """The parts of the loop driver that are used here."""

    engine: Engine
    firewall: Firewall

    def window_for(self, optimizer: Any) -> Window: ...

    def refuse(self, window: Window, failure: Failure) -> None: ...

    def on_step_done(self, optimizer: Any, is_done: bool) -> None: ...

    def end_refused(self, window: Window) -> None: ...


def moves_before_closure(optimizer: Any) -> bool:
    """Whether the optimizer may change weights before it evaluates its closure.

    Except for LBFGS, the optimizers of torch evaluate it first. Others may ascend first (SAM), or try several step sizes.
    """
    cls = type(optimizer)
    is_torch = cls.__module__.startswith("torch.optim")
    return not is_torch or issubclass(cls, torch.optim.LBFGS)


class ClosureSteps:
    """Runs the steps of optimizers with a closure."""

    def __init__(self, driver: ClosureDriver) -> None:
        self._driver = weakref.ref(driver)
        self._copies: weakref.WeakKeyDictionary[Any, OptimizerCopy] = weakref.WeakKeyDictionary()

    def step(self, optimizer: Any, closure: Callable[[], Any], call: Callable[[Any], Any]) -> Any:
        driver = self._driver()
        if driver is None:
            return call(closure)
        window: Window | None = driver.firewall.call(driver.window_for, optimizer)
        if window is None:
            return call(closure)
        copy = driver.firewall.call(self._copy, optimizer)
        found: list[Failure] = []
        last: list[Any] = []
        num_backward = window.num_backward

        def watched() -> Any:
            loss = closure()
            last[:] = [loss]
            failure = driver.firewall.call(self._check, driver.engine, window, optimizer)
            if failure is not None:
                found.append(failure)
                raise Abort
            return loss

        is_done = False
        try:
            result = call(watched)
            is_done = True
        except Abort:
            result = last[0]
        if found:
            if copy is not None:
                window.search_point = driver.firewall.call(SearchPoint.of, optimizer)
                driver.firewall.call(copy.restore)
            if (
                window.num_backward != num_backward
            ):  # else the loop computed the loss before the step
                is_own = copy is not None and window.search_point is None
                # If the loop evaluated before the step, the optimizer uses those gradients.
                first = closure if num_backward else None
                own = _kept(optimizer, lambda: call(closure), first) if is_own else closure
                window.closure, window.evaluation = own, closure
            driver.firewall.call(driver.refuse, window, found[0])
            window.closure = window.evaluation = window.search_point = None
            driver.firewall.call(driver.end_refused, window)
        else:
            driver.firewall.call(driver.on_step_done, optimizer, is_done)
        return result

    def _copy(self, optimizer: Any) -> OptimizerCopy | None:
        if not moves_before_closure(optimizer):
            return None
        copy = self._copies.get(optimizer)
        if copy is None:
            copy = self._copies[optimizer] = OptimizerCopy(optimizer)
        copy.take()
        return copy

    def _check(self, engine: Engine, window: Window, optimizer: Any) -> Failure | None:
        window.losses = window.losses[-1:]
        return engine.check(window, optimizer, is_compared=not moves_before_closure(optimizer))


def _kept(
    optimizer: Any, step: Callable[[], Any], first: Callable[[], Any] | None
) -> Callable[[], Any]:
    """A replay of the whole step, undone afterwards: the optimizer made its weights bad between two evaluations."""

    def run() -> Any:
        copy = OptimizerCopy(optimizer)
        copy.take()
        try:
            if first is not None:
                first()
            return step()
        finally:
            copy.restore()

    return run
