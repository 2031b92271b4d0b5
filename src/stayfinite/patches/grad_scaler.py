"""Observes a loop's GradScaler: the loss before and after scaling, and whether it called the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .manager import Subscribers, original_of

__all__ = ["on_scale", "on_step"]


def on_scale(original: Any, subscribers: Subscribers) -> Any:
    def scale(scaler: Any, outputs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(scaler, outputs)
        here = [s.listener for s in subscribers.here()]
        for listener in here:
            listener.firewall.call(listener.before_scale)
        scaled = original(scaler, outputs)
        if isinstance(outputs, Tensor):
            for listener in here:
                listener.firewall.call(listener.on_scale, scaler, outputs, scaled)
        return scaled

    return scale


def on_step(original: Any, subscribers: Subscribers) -> Any:
    """Report that the scaler decided not to call the optimizer."""

    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        here = [s.listener for s in subscribers.here()]
        mine = [one for one in here if one.firewall.call(one.owns, original_of(optimizer))]
        for listener in mine:
            listener.firewall.call(listener.on_scaler_step, scaler, optimizer, True)
        result = original(scaler, optimizer, *args, **kwargs)
        for listener in mine:
            listener.firewall.call(listener.on_scaler_step, scaler, optimizer, False)
        return result

    return step
