"""One interface to all accelerators, with fallbacks for features that some of them lack.

No other module names a kind of device, except for features that only one kind has (cuDNN).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "accelerator",
    "autocast_devices",
    "copy_out",
    "current",
    "device_memory",
    "device_name",
    "has_accelerator",
    "is_accelerator_started",
    "random_states",
    "room_on_host",
    "set_random_states",
    "widest",
]

_unpinned: set[str] = set()
_without_events: set[str] = set()
current = getattr(torch._C, "_accelerator_getAccelerator", torch.accelerator.current_accelerator)
"""The accelerator of this process, or None. The C function itself, because every healthy step calls it."""


def accelerator() -> str | None:
    """The kind of accelerator that this torch supports; None without one."""
    found = current()
    return None if found is None else found.type


def has_accelerator() -> bool:
    """Whether an accelerator is available."""
    return bool(torch.accelerator.is_available())


def _module(kind: str) -> Any:
    return torch.get_device_module(kind)


def is_accelerator_started() -> bool:
    """Whether this process uses the accelerator. If not, reading its state would start the driver needlessly."""
    found = current()
    if found is None:
        return False
    is_initialized = getattr(_module(found.type), "is_initialized", None)
    return bool(torch.accelerator.is_available() if is_initialized is None else is_initialized())


def random_states() -> list[Tensor] | None:
    """The states of the accelerator's generators; None if there is no accelerator, or it is not used."""
    if not is_accelerator_started():
        return None
    module = _module(str(accelerator()))
    if hasattr(module, "get_rng_state_all"):
        return list(module.get_rng_state_all())
    return [module.get_rng_state()] if hasattr(module, "get_rng_state") else None


def set_random_states(states: Sequence[Tensor]) -> None:
    """Restore the states that `random_states` returned."""
    module = _module(str(accelerator()))
    if hasattr(module, "set_rng_state_all"):
        module.set_rng_state_all(list(states))
    else:
        module.set_rng_state(states[0])


def autocast_devices() -> list[str]:
    """The kinds of device that autocast supports."""
    kind = accelerator()
    return ["cpu"] if kind is None else ["cpu", kind]


@lru_cache(maxsize=16)
def widest(device: torch.device) -> torch.dtype:
    """float64 if the device supports it, else float32 (Apple's MPS, some others).

    >>> widest(torch.device("cpu"))
    torch.float64
    """
    try:
        torch.zeros(1, dtype=torch.float64, device=device).sum()
    except (TypeError, RuntimeError, NotImplementedError):
        return torch.float32
    return torch.float64


def room_on_host(like: Tensor) -> Tensor:
    """Allocate host memory for a copy; pinned if the device can copy to it asynchronously."""
    if like.layout == torch.strided and like.device.type not in _unpinned:
        try:
            return torch.empty_like(like, device="cpu", pin_memory=like.device.type != "cpu")
        except (RuntimeError, NotImplementedError):
            _unpinned.add(like.device.type)
    return torch.empty_like(like, device="cpu")


def copy_out(value: Tensor) -> tuple[Tensor, Any]:
    """Start an asynchronous copy to the host; returns it with the event that marks its arrival.

    The event is None if the copy is complete: a copy from the host, or from a device without events, which
    is waited for.
    """
    kind = value.device.type
    if kind == "cpu":
        return value.clone(), None
    host = room_on_host(value)
    is_async = host.is_pinned() and kind not in _without_events
    host.copy_(value, non_blocking=is_async)
    if not is_async:
        return host, None
    try:
        event = torch.Event(value.device)
        event.record()
    except (RuntimeError, NotImplementedError):
        _without_events.add(kind)
        host.copy_(value)
        return host, None
    return host, event


def device_name(kind: str) -> str:
    """The product name of the device; empty if it has none."""
    name = getattr(_module(kind), "get_device_name", None) if kind != "cpu" else None
    return str(name()) if name is not None else ""


def device_memory(kind: str) -> float | None:
    """Free bytes on the accelerator; None if unknown."""
    read = getattr(_module(kind), "mem_get_info", None) if kind != "cpu" else None
    return float(read()[0]) if read is not None else None
