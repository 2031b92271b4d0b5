"""One `guard.step` as plain code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..window import Window
from .parts import LossFn, StepParts

__all__ = ["PlainStep"]


@dataclass
class PlainStep:
    """The progress of one step. Each part runs here, once; `finish` runs the parts that are left."""

    _parts: StepParts
    _loss_fn: LossFn
    _batch: Any
    loss: Any = None
    norm: Tensor | None = None
    is_user_code = False
    """Whether the training's own code is running, so that its exceptions are passed on."""
    is_backward = False
    is_clipped = False
    is_applied = False
    is_scheduled = False
    refused: Window | None = None
    """The window of a bad step, which is skipped."""

    def clip(self) -> Tensor | None:
        """Unscale and clip the gradients if configured; returns the norm before clipping."""
        parts = self._parts
        if not self.is_clipped:
            self.is_clipped = True
            if parts.scaler is not None:
                parts.scaler.unscale_(parts.optimizer)
            if parts.clip_norm is not None:
                moved = [p for g in parts.optimizer.param_groups for p in g["params"]]
                self.norm = torch.nn.utils.clip_grad_norm_(moved, parts.clip_norm)
        return self.norm

    def apply(self) -> None:
        """Step the optimizer, through the scaler if there is one."""
        parts = self._parts
        self.is_user_code = True
        if parts.scaler is not None:
            parts.scaler.step(parts.optimizer)
            parts.scaler.update()
        else:
            parts.optimizer.step()
        self.is_user_code = False
        self.is_applied = True

    def move_schedule(self) -> None:
        schedule = self._parts.schedule
        if schedule.is_ours:
            self.is_user_code = True
            schedule.scheduler.step()
            self.is_user_code = False
        else:
            schedule.after_step()
        self.is_scheduled = True

    def finish(self) -> None:
        """Run the remaining parts, unchecked."""
        parts = self._parts
        schedule = parts.schedule
        if self.loss is None:
            if schedule.is_waiting:
                schedule.is_waiting, schedule.is_ours = False, True
                schedule.scheduler.step()
            parts.optimizer.zero_grad(set_to_none=True)
            if parts.needs_closure:
                return self._search()
            self.loss = self._loss_fn(parts.model, self._batch)
        if not self.is_backward:
            scaled = self.loss if parts.scaler is None else parts.scaler.scale(self.loss)
            scaled.backward()
        if not self.is_applied:
            self.clip()
            self.apply()
        if (
            not self.is_scheduled
            and schedule.scheduler is not None
            and schedule.is_ours is not False
        ):
            schedule.is_ours = True
            schedule.scheduler.step()

    def _search(self) -> None:
        def closure() -> Any:
            self._parts.optimizer.zero_grad(set_to_none=True)
            self.loss = self._loss_fn(self._parts.model, self._batch)
            self.loss.backward()
            return self.loss

        self._parts.optimizer.step(closure)
        self.is_applied = True
