"""Checks whose result is read a step later, so that the host never waits for the device.

The flag stays on the device and is sticky: the fused optimizer itself (`found_inf`) skips the step that set it and every
later step, until the host has read the flag. So weights and moments are still those from before the first bad step.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..devices import copy_out
from ..numerics.health import FiniteFlag

__all__ = ["DeferredFlag"]

W = TypeVar("W")

_MAX_OUTSTANDING = 2


class _Reading(Generic[W]):
    """An asynchronous copy of the flag to the host."""

    def __init__(self, window: W, flag: Tensor, here: float | None = None) -> None:
        self.window = window
        self._event: Any = None
        self._here = here
        if here is not None:
            return
        self._host, self._event = copy_out(flag)

    def is_ready(self) -> bool:
        return self._event is None or bool(self._event.query())

    def value(self) -> float:
        """1 for a bad step; with several ranks, 0.5 for a good one after which a deep check is due."""
        if self._here is not None:
            return self._here
        if self._event is not None:
            self._event.synchronize()
        # Read from the host's memory: no operator, no sync.
        return float(self._host.numpy())


class DeferredFlag(Generic[W]):
    """The flag of one training, and its pending copies."""

    def __init__(self, device: torch.device) -> None:
        self.flag = FiniteFlag(device)
        self.is_due = False
        """Whether all ranks want a deep check after one of the steps collected last."""
        self._under_way: deque[_Reading[W]] = deque()
        self._verdict: Tensor | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a copy is pending."""
        return bool(self._under_way)

    @staticmethod
    def can_serve(optimizer: Optimizer) -> bool:
        """Whether this optimizer can skip a step on the device."""
        known = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
        ok = isinstance(optimizer, known) and all(g.get("fused") for g in optimizer.param_groups)
        if not ok:
            warnings.warn(
                f"deferred checks need a fused Adam, AdamW or SGD (fused=True), got "
                f"{type(optimizer).__name__}; its steps are checked at once",
                stacklevel=2,
            )
        return ok

    def arm(self, optimizer: Optimizer, tensors: list[Tensor]) -> None:
        """Fold these tensors into the flag, and let the optimizer's kernel read it."""
        self.flag.fold(tensors)
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        optimizer.found_inf = self.flag.value  # type: ignore[attr-defined]

    def share(self, is_bad: Tensor, is_due: Tensor) -> None:
        """The reduced flag of all ranks, still on the device, and whether a deep check follows."""
        self._verdict = torch.maximum(is_bad, is_due * 0.5).reshape(())

    def disarm(self, optimizer: Optimizer) -> None:
        """Remove our flag from the optimizer."""
        for name in ("grad_scale", "found_inf"):
            vars(optimizer).pop(name, None)

    def submit(self, window: W) -> None:
        """Start a copy of the flag for a step that was issued."""
        here = self.flag.here
        if self._verdict is None and here is not None:
            self._under_way.append(_Reading(window, self.flag.value, here.value))
            return
        verdict = self.flag.value if self._verdict is None else self._verdict
        self._under_way.append(_Reading(window, verdict))

    def collect(
        self, is_last: bool = False, in_step: bool = False
    ) -> tuple[list[W], W | None, list[W]]:
        """(steps that were finite, the first bad one, those skipped after it).

        `in_step`: read a copy when it has a fixed age, the same on every rank, and not when it happens to have arrived.
        """
        fine: list[W] = []
        self.is_due = False
        while self._under_way:
            reading = self._under_way[0]
            must_wait = is_last or len(self._under_way) >= _MAX_OUTSTANDING
            if not must_wait and (in_step or not reading.is_ready()):
                break
            self._under_way.popleft()
            value = reading.value()
            if value < 1:
                self.is_due = self.is_due or value > 0
                fine.append(reading.window)
                continue
            later = [r.window for r in self._under_way]
            self._under_way.clear()
            self.flag.reset()
            return fine, reading.window, later
        return fine, None, []
