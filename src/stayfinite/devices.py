"""One interface to every accelerator, and what some of them lack.

Nothing else in the package names a kind of device, but for facts that only one kind has (cuDNN).
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
"""The accelerator of this process, or None, without another call of ours: it is asked in every healthy step."""


def accelerator() -> str | None:
    """The kind of accelerator that this torch was built for or has registered; None without one."""
    found = current()
    return None if found is None else found.type


def has_accelerator() -> bool:
    """Whether there is one to compute on."""
    return bool(torch.accelerator.is_available())


def _module(kind: str) -> Any:
    return torch.get_device_module(kind)


def is_accelerator_started() -> bool:
    """Whether this process uses it; asking for its state would start a driver that nobody uses."""
    found = current()
    if found is None:
        return False
    is_initialized = getattr(_module(found.type), "is_initialized", None)
    return bool(torch.accelerator.is_available() if is_initialized is None else is_initialized())


def random_states() -> list[Tensor] | None:
    """The state of the accelerator's generators; None where there is none, or it is not used."""
    if not is_accelerator_started():
        return None
    module = _module(str(accelerator()))
    if hasattr(module, "get_rng_state_all"):
        return list(module.get_rng_state_all())
    return [module.get_rng_state()] if hasattr(module, "get_rng_state") else None


def set_random_states(states: Sequence[Tensor]) -> None:
    """What `random_states` returned, put back."""
    module = _module(str(accelerator()))
    if hasattr(module, "set_rng_state_all"):
        module.set_rng_state_all(list(states))
    else:
        module.set_rng_state(states[0])


def autocast_devices() -> list[str]:
    """Kinds of device that autocast can be on for."""
    kind = accelerator()
    return ["cpu"] if kind is None else ["cpu", kind]


@lru_cache(maxsize=16)
def widest(device: torch.device) -> torch.dtype:
    """float64 where the device has it, else float32 (Apple's MPS, some others).

    >>> widest(torch.device("cpu"))
    torch.float64
    """
    try:
        torch.zeros(1, dtype=torch.float64, device=device).sum()
    except (TypeError, RuntimeError, NotImplementedError):
        return torch.float32
    return torch.float64


def room_on_host(like: Tensor) -> Tensor:
    """Memory of the host for a copy of this; pinned where a device can copy to it by itself."""
    if like.layout == torch.strided and like.device.type not in _unpinned:
        try:
            return torch.empty_like(like, device="cpu", pin_memory=like.device.type != "cpu")
        except (RuntimeError, NotImplementedError):
            _unpinned.add(like.device.type)
    return torch.empty_like(like, device="cpu")


def copy_out(value: Tensor) -> tuple[Tensor, Any]:
    """A copy on its way to the host, and the event that tells when it has arrived.

    The event is None where the copy is there already: from the host itself, or from a device that has
    no events, which makes us wait.
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
    """What the maker calls it; empty where the device does not say."""
    name = getattr(_module(kind), "get_device_name", None) if kind != "cpu" else None
    return str(name()) if name is not None else ""


def device_memory(kind: str) -> float | None:
    """Free bytes on the accelerator; None where it does not say."""
    read = getattr(_module(kind), "mem_get_info", None) if kind != "cpu" else None
    return float(read()[0]) if read is not None else None
