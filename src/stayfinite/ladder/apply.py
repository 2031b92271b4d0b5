"""Our own knobs, turned: for as long as this process lives."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.utils.data

from ..investigate import changes
from ..runtime.state import TrainState

__all__ = ["Seen", "turn_knobs"]

_kept = contextlib.ExitStack()


def turn_knobs(knobs: Mapping[str, str]) -> None:
    """Put these knobs in place before the script starts."""
    if knobs.get("autocast") == "off":
        _no_autocast()
    if knobs.get("precision") == "fp32":
        # No model is there yet: what the script makes from now on is made in float32.
        _kept.enter_context(changes.higher_precision(TrainState()))
    if "lr" in knobs:
        _kept.enter_context(changes.scaled_lr(float(knobs["lr"].removesuffix("x"))))
    if "clip" in knobs:
        _kept.enter_context(changes.clipped(float(knobs["clip"])))
    is_off = "off" in (knobs.get("autocast"), knobs.get("scaler")) or "precision" in knobs
    if is_off or {"init_scale", "growth_interval"} & set(knobs):
        _scaler(knobs, is_off)


def _no_autocast() -> None:
    cls: Any = torch.amp.autocast_mode.autocast
    original = cls.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._enabled = False

    cls.__init__ = __init__


def _scaler(knobs: Mapping[str, str], is_off: bool) -> None:
    cls: Any = torch.amp.GradScaler
    original = cls.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not self._enabled:
            return
        if is_off:
            self._enabled = False
            return
        if "init_scale" in knobs:
            self._init_scale = float(knobs["init_scale"])
        if "growth_interval" in knobs:
            self.set_growth_interval(int(float(knobs["growth_interval"])))

    cls.__init__ = __init__


class Seen:
    """Remembers whether any autocast was really on, and whether there was a loader."""

    def __init__(self) -> None:
        self.has_autocast = False
        self.has_loader = False
        autocast: Any = torch.amp.autocast_mode.autocast
        enter = autocast.__enter__

        def __enter__(this: Any) -> Any:
            self.has_autocast = self.has_autocast or bool(this._enabled)
            return enter(this)

        loader: Any = torch.utils.data.DataLoader
        make = loader.__init__

        def __init__(this: Any, *args: Any, **kwargs: Any) -> None:
            self.has_loader = True
            make(this, *args, **kwargs)

        autocast.__enter__ = __enter__
        loader.__init__ = __init__
