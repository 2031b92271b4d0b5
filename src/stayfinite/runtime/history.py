"""A short history of recent steps; tensors are kept by reference, without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ..detect.check import number_of
from ..records import StepRecord
from .state import TrainState
from .window import Window

__all__ = ["Row", "records_of", "row_of"]

Row = tuple[int, int, Any, Any, tuple[float, ...], Any, bool]
"""Step, epoch, loss, gradient norm, learning rates, loss scale, whether it was applied."""


def row_of(window: Window, state: TrainState) -> Row:
    last = window.batches[-1]
    loss: Any = window.loss
    if loss is None and window.losses:
        loss = window.losses[-1][1].detach()
    scale = _scale(state) if state.scalers.refs else None
    return (last.step, last.epoch, loss, window.norm, window.lrs, scale, window.num_applied > 0)


def _scale(state: TrainState) -> Any:
    """The current scale, without a sync. The scaler changes its tensor in place, so this is a copy."""
    scale = getattr(state.scalers[0], "_scale", None)
    if not isinstance(scale, Tensor):
        return scale
    return scale.item() if scale.device.type == "cpu" else scale.clone()


def records_of(rows: Iterable[Row]) -> tuple[StepRecord, ...]:
    """The same rows as records for an incident, read from the device."""
    return tuple(
        StepRecord(
            step=step,
            epoch=epoch,
            loss=number_of(loss),
            grad_norm=number_of(norm),
            lr=lr,
            scale=number_of(scale),
            is_applied=applied,
        )
        for step, epoch, loss, norm, lr, scale, applied in rows
    )
