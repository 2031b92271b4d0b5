"""The objects that `guard.step` works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UsageError
from .schedule import Schedule

__all__ = ["LossFn", "StepParts"]

LossFn = Callable[[Any, Any], Tensor]


@dataclass
class StepParts:
    """The model, its optimizer, scaler, gradient clipping and schedule."""

    model: nn.Module
    optimizer: Any
    scaler: Any
    clip_norm: float | None
    schedule: Schedule

    def __post_init__(self) -> None:
        self.needs_closure = isinstance(self.optimizer, torch.optim.LBFGS)

    def loss(self, loss_fn: LossFn, batch: Any) -> Tensor:
        """Compute the loss of this batch; raises a UsageError if it is not a scalar loss."""
        loss = loss_fn(self.model, batch)
        self.check_loss(loss)
        return loss

    def check_loss(self, loss: Any) -> None:
        """Raise a UsageError if this is not a scalar loss."""
        if type(loss) is Tensor and not loss.dim() and loss.requires_grad:
            return
        if not isinstance(loss, Tensor):
            raise UsageError(
                f"loss_fn must return a tensor, got {type(loss).__name__}; "
                "return the scalar loss, not a number or a tuple"
            )
        if loss.numel() != 1:
            raise UsageError(
                f"loss_fn must return a scalar, got shape {tuple(loss.shape)}; "
                "reduce it, for instance with .mean()"
            )
        if not loss.requires_grad:
            raise UsageError(
                "the loss needs no gradient: nothing in it depends on a parameter that requires "
                "grad; look for .detach(), torch.no_grad() or frozen parameters"
            )
