"""Steps whose verdict is read later, so that the host never waits for the device.

The flag stays on the device and sticks: the step that set it, and every step after it, is skipped by
the fused optimizer itself (`found_inf`) until somebody has looked. Weights and moments are then still
what they were when the first of them went wrong.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..numerics.health import FiniteFlag
from .window import Window

__all__ = ["DeferredFlag"]

_MAX_OUTSTANDING = 2


class _Reading:
    """One copy of the flag on its way to the host."""

    def __init__(self, window: Window, flag: Tensor) -> None:
        self.window = window
        self._event: Any = None
        if flag.device.type == "cpu":
            self._host = flag.clone()
        else:
            self._host = torch.empty((), dtype=flag.dtype, pin_memory=True)
            self._host.copy_(flag, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def is_ready(self) -> bool:
        return self._event is None or bool(self._event.query())

    def is_set(self) -> bool:
        if self._event is not None:
            self._event.synchronize()
        # Through the host's memory: no operator, no sync.
        return bool(self._host.numpy() != 0)


class DeferredFlag:
    """The flag of one training and the readings under way."""

    def __init__(self, device: torch.device) -> None:
        self.flag = FiniteFlag(device)
        self._under_way: deque[_Reading] = deque()

    @staticmethod
    def can_serve(optimizer: Optimizer) -> bool:
        """Whether this optimizer skips on the device by itself."""
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
        """Fold these into the flag and let the optimizer's kernel look at it."""
        self.flag.fold(tensors)
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        optimizer.found_inf = self.flag.value  # type: ignore[attr-defined]

    def submit(self, optimizer: Optimizer, window: Window) -> None:
        """The step has been issued; its verdict comes later."""
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        self._under_way.append(_Reading(window, self.flag.value))

    def collect(self, is_last: bool = False) -> tuple[list[Window], Window | None, list[Window]]:
        """(steps now known to be fine, the first bad one, the ones skipped after it)."""
        fine: list[Window] = []
        while self._under_way:
            reading = self._under_way[0]
            must_wait = is_last or len(self._under_way) >= _MAX_OUTSTANDING
            if not must_wait and not reading.is_ready():
                break
            self._under_way.popleft()
            if not reading.is_set():
                fine.append(reading.window)
                continue
            later = [r.window for r in self._under_way]
            self._under_way.clear()
            self.flag.reset()
            return fine, reading.window, later
        return fine, None, []
