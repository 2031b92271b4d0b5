"""Getters and setters of the small state: what is no tensor of the model, but goes back with it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["dict_slot", "modes_slot", "own_slots", "scaler_slot", "state_slot"]


def dict_slot(
    entries: dict[str, Any], skip: str | None = None
) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """The non-tensor values of a dict."""

    def get() -> dict[str, Any]:
        return {k: v for k, v in entries.items() if k != skip and not isinstance(v, Tensor)}

    return get, entries.update


def state_slot(obj: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    load = getattr(type(obj).load_state_dict, "__wrapped__", type(obj).load_state_dict)
    return obj.state_dict, lambda value: load(obj, value)


_NOT_THE_USERS = ("builtins", "collections", "torch", "numpy")
_SIMPLE = (bool, int, float, str, type(None))


class _Bare(Optimizer):
    """An optimizer that nobody hears of: whoever listens for new ones has wrapped `__init__`."""

    def __init__(self) -> None:
        inspect.unwrap(Optimizer.__init__)(self, [torch.zeros(1)], {})


@functools.cache
def _torch_own() -> frozenset[str]:
    """What every optimizer of torch has; asked for late, because making one imports the compiler."""
    return frozenset(vars(_Bare()))


def own_slots(optimizer: Optimizer) -> list[tuple[Callable[[], Any], Callable[[Any], None]]]:
    """What a hand-written optimizer keeps beside `state`: counters, a loss scale of its own."""
    if _home_of(optimizer) == "torch":
        return []
    extra = {k: v for k, v in vars(optimizer).items() if k not in _torch_own()}
    objects = [v for v in extra.values() if _home_of(v) not in _NOT_THE_USERS]
    slots = [_values_slot(vars(v), None) for v in objects if hasattr(v, "__dict__")]
    return [_values_slot(vars(optimizer), set(extra)), *slots]


def _home_of(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _values_slot(
    home: dict[str, Any], names: set[str] | None
) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def get() -> dict[str, Any]:
        kept = {k: v for k, v in home.items() if names is None or k in names}
        small = {k: v for k, v in kept.items() if isinstance(v, _SIMPLE)}
        tensors = {k: v for k, v in kept.items() if isinstance(v, Tensor) and v.numel() <= 64}
        return {**small, **{k: v.detach().clone() for k, v in tensors.items()}}

    return get, home.update


def modes_slot(
    roots: Iterable[nn.Module],
) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Which modules train and which evaluate: a step is run again as it was run."""
    modules = [m for root in roots for m in root.modules()]

    def put(modes: list[bool]) -> None:
        for module, mode in zip(modules, modes):
            module.training = mode

    return lambda: [m.training for m in modules], put


def scaler_slot(scaler: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def get() -> tuple[Tensor | None, Tensor | None]:
        return scaler._scale, scaler._growth_tracker

    def put(kept: tuple[Tensor | None, Tensor | None]) -> None:
        for name, value in zip(("_scale", "_growth_tracker"), kept):
            live = getattr(scaler, name)
            if live is not None and value is not None:
                live.copy_(value)
            else:
                setattr(scaler, name, value)

    return get, put
