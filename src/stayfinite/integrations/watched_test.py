"""One test under `pytest --stayfinite`.

It checks every backward, even without an optimizer step. A training does not want this, since it waits for the device each time.
A test does: `loss.backward()` and `assert` are often all that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ..errors import NonFiniteError
from ..patches.manager import Subscribers, Target, subscribe
from ..records import Incident
from ..report.text import headline, render
from ..runtime.graph import leaves_of
from ..runtime.script.block import WatchedBlock
from ..runtime.window import Failure
from .session import Session

__all__ = ["WatchedTest"]

_REASON = "in a test, loss and gradients are looked at with each backward"


class WatchedTest:
    """Active from the test's fixtures on; the first non-finite value fails the test."""

    def __init__(self, name: str) -> None:
        self._session = Session("raise", say=_say_nothing)
        self._session.open(name)
        block = self._session.block
        self._strict = _StrictBackward(block) if block is not None else None

    @property
    def incidents(self) -> list[Incident]:
        return self._session.incidents

    def begin(self, names: Mapping[str, Any]) -> None:
        """Begin the test: track the optimizers that its fixtures made."""
        self._session.adopt(names)
        if self._strict is not None:
            self._strict.begin()

    def close(self, error: BaseException | None = None) -> None:
        try:
            self._session.close(error)
        finally:
            if self._strict is not None:
                self._strict.close()

    def shorten(self, error: BaseException) -> None:
        """Shorten the traceback of a NonFiniteError."""
        if isinstance(error, NonFiniteError):
            _at_the_line(error)

    def headline(self) -> str:
        return f"stayfinite: {headline(self.incidents[0])}"

    def texts(self) -> list[str]:
        """Each incident in full."""
        return [render(i) for i in self.incidents]


def _at_the_line(error: NonFiniteError) -> None:
    """Cut its traceback at the test's own line, before the frames of torch and of stayfinite."""
    kept: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        if name.startswith(("torch.", "stayfinite.patches")):
            break
        kept.append(trace)
        trace = trace.tb_next
    shown: TracebackType | None = None
    for each in reversed(kept):
        shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    error.__traceback__ = shown


def _say_nothing(incident: Incident) -> None:
    """Print nothing: it is in the test's report."""


class _StrictBackward:
    """Makes every bad backward an incident, until `close`."""

    def __init__(self, block: WatchedBlock) -> None:
        self._driver = block.driver
        self._held: list[Any] = []
        """Keeps what the test trains alive for the last check."""
        target = Target(torch.autograd, "backward", _REASON, "integrations")
        self._subscription = subscribe(target, _look_after, self)

    def begin(self) -> None:
        """Begin the test: random numbers are recorded from here on."""
        self._driver.firewall.call(self._driver.loaderless.may_begin)

    def close(self) -> None:
        self._subscription.close()
        self._held.clear()

    @property
    def is_listening(self) -> bool:
        driver = self._driver
        return not driver.is_replaying and not driver.state.is_scaled

    def look(self, losses: list[Tensor]) -> None:
        """Check the losses and gradients of a backward; raises what the policy raises."""
        window = self._driver.window_now()
        if window.failure is not None:
            return
        leaves = list(leaves_of(losses))
        bad = next((t for t in losses if not _is_finite(t)), None)
        if bad is not None:
            value = float(bad.detach()) if bad.numel() == 1 else None
            failure = Failure("loss", window.step, value=value)
        elif all(p.grad is None or _is_finite(p.grad) for p in leaves):
            self._held = [*self._driver.state.optimizers, *self._driver.state.roots.values()]
            self._driver.engine.deep_checks.request()  # the step that follows is looked at where it stands
            return
        else:
            failure = Failure("gradient", window.step)
        self._adopt(leaves)
        window.num_attempted += 1
        self._driver.refuse(window, failure)

    def _adopt(self, leaves: list[Tensor]) -> None:
        """Add an optimizer that never steps for parameters without one, so that their gradients are checked."""
        moved = {
            id(p)
            for o in self._driver.state.optimizers
            for g in o.param_groups
            for p in g["params"]
        }
        rest = [p for p in leaves if id(p) not in moved]
        if rest:
            made = torch.optim.SGD(rest, lr=0.0)
            del made.param_groups[0]["lr"]  # no rate of the training's
            self._held.append(made)


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach().to_dense()).all())


def _look_after(original: Any, subscribers: Subscribers) -> Any:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        made = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        result = original(made, *args, **kwargs)
        for each in subscribers:
            if each.is_listening:
                each._driver.firewall.call(each.look, made)
        return result

    return backward
