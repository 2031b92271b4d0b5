"""Applies our own knobs in a process of the ladder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.utils.data

from ..investigate import changes
from ..patches.manager import Subscribers, Target, subscribe
from ..runtime.state import TrainState
from ..runtime.step_changes import clipped, scaled_lr

__all__ = ["Seen", "turn_knobs"]

_AUTOCAST: Any = torch.amp.autocast_mode.autocast
_kept = contextlib.ExitStack()


def turn_knobs(knobs: Mapping[str, str]) -> None:
    """Apply these knobs before the script starts."""
    if knobs.get("autocast") == "off":
        _no_autocast()
    if knobs.get("precision") == "fp32":
        # There is no model yet: what the script makes from now on is made in float32.
        _kept.enter_context(changes.higher_precision(TrainState()))
    if "lr" in knobs:
        _kept.enter_context(scaled_lr(float(knobs["lr"].removesuffix("x"))))
    if "clip" in knobs:
        _kept.enter_context(clipped(float(knobs["clip"])))
    is_off = "off" in (knobs.get("autocast"), knobs.get("scaler")) or "precision" in knobs
    if is_off or {"init_scale", "growth_interval"} & set(knobs):
        _scaler(knobs, is_off)


def _no_autocast() -> None:
    _patch(_AUTOCAST, "__init__", "autocast is turned off", _switched_off, None)


def _switched_off(original: Any, subscribers: Subscribers) -> Any:
    def __init__(context: Any, *args: Any, **kwargs: Any) -> None:
        original(context, *args, **kwargs)
        context._enabled = False

    return __init__


def _scaler(knobs: Mapping[str, str], is_off: bool) -> None:
    changes: dict[str, Any] = {"_enabled": False} if is_off else {}
    if not is_off and "init_scale" in knobs:
        changes["_init_scale"] = float(knobs["init_scale"])
    if not is_off and "growth_interval" in knobs:
        changes["_growth_interval"] = int(float(knobs["growth_interval"]))
    _patch(torch.amp.GradScaler, "__init__", "the GradScaler is changed", _changed_scaler, changes)


def _changed_scaler(original: Any, subscribers: Subscribers) -> Any:
    def __init__(scaler: Any, *args: Any, **kwargs: Any) -> None:
        original(scaler, *args, **kwargs)
        if scaler._enabled:
            for changes in subscribers:
                vars(scaler).update(changes)

    return __init__


class Seen:
    """Records whether autocast was really on, and whether there was a loader."""

    def __init__(self) -> None:
        self.has_autocast = False
        self.has_loader = False
        _patch(_AUTOCAST, "__enter__", "autocast is noted", _note_autocast, self)
        _patch(torch.utils.data.DataLoader, "__init__", "a loader is noted", _note_loader, self)


def _note_autocast(original: Any, subscribers: Subscribers) -> Any:
    def __enter__(context: Any) -> Any:
        for seen in subscribers:
            seen.has_autocast = seen.has_autocast or bool(context._enabled)
        return original(context)

    return __enter__


def _note_loader(original: Any, subscribers: Subscribers) -> Any:
    def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
        for seen in subscribers:
            seen.has_loader = True
        original(loader, *args, **kwargs)

    return __init__


def _patch(owner: Any, name: str, reason: str, make: Any, subscriber: Any) -> None:
    """Patch until the process ends."""
    subscribe(Target(owner, name, reason, "ladder"), make, subscriber)
