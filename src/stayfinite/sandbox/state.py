"""Restores global switches that a replay changes; the caller restores random states."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["thread_state_kept"]

_kept_guards: list[Any] = []
"""The guard object that disabled an unbalanced inference mode; freeing it would enable the mode again."""

Switch = tuple[Callable[[], Any], Callable[[Any], object]]
"""A getter and a setter of a setting."""


def _core(name: str) -> Any:
    return getattr(torch._C, name)


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _set_anomaly(value: tuple[bool, bool]) -> None:
    torch.autograd.set_detect_anomaly(value[0], check_nan=value[1])


def _set_inference(value: bool) -> None:
    guard = torch.inference_mode(value)
    guard.__enter__()
    _kept_guards.append(guard)


def _flag(owner: Any, name: str) -> Switch:
    return (lambda: getattr(owner, name)), (lambda value: setattr(owner, name, value))


def _autocast(device: str) -> Switch:
    def read() -> tuple[bool, torch.dtype]:
        return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def set_both(value: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(device, value[0])
        torch.set_autocast_dtype(device, value[1])

    return read, set_both


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _set_nesting(value: int) -> None:
    while _nesting() > value:
        torch.autocast_decrement_nesting()
    while _nesting() < value:
        torch.autocast_increment_nesting()


def _default_device() -> Any:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _modes() -> tuple[int, int]:
    return _core("_len_torch_function_stack")(), _core("_len_torch_dispatch_stack")()


def _pop_modes(value: tuple[int, int]) -> None:
    """Pop modes that the replay has pushed and not left."""
    while _modes()[0] > value[0]:
        _core("_pop_torch_function_stack")()
    while _modes()[1] > value[1]:
        _core("_pop_torch_dispatch_stack")(None)


_SWITCHES: tuple[Switch, ...] = (
    (_default_device, torch.set_default_device),
    (_modes, _pop_modes),
    (torch.is_inference_mode_enabled, _set_inference),
    (torch.is_grad_enabled, _core("_set_grad_enabled")),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (_nesting, _set_nesting),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        _set_deterministic,
    ),
    (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        _set_anomaly,
    ),
    _flag(torch.utils.deterministic, "fill_uninitialized_memory"),
    _flag(torch.backends.cudnn, "deterministic"),
    _flag(torch.backends.cudnn, "benchmark"),
    _flag(torch.backends.cudnn, "allow_tf32"),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (gc.isenabled, lambda value: gc.enable() if value else gc.disable()),
    (lambda: list(sys.path), lambda value: sys.path.__setitem__(slice(None), value)),
    (lambda: sys.stdout, lambda value: setattr(sys, "stdout", value)),
    (lambda: sys.stderr, lambda value: setattr(sys, "stderr", value)),
)


def _switches() -> Iterator[Switch]:
    yield from _SWITCHES
    yield _autocast("cpu")
    accelerator = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    if accelerator is not None:
        yield _autocast(accelerator.type)
        # Reading the device would start a driver that the training does not use.
        is_started = getattr(torch.get_device_module(accelerator), "is_initialized", None)
        if is_started is not None and is_started():
            yield torch.accelerator.current_device_index, torch.accelerator.set_device_index
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield numpy.geterr, lambda value: numpy.seterr(**value)


_NOT: Any = object()


def _read(read: Callable[[], Any]) -> Any:
    """Some settings cannot be read if their older and newer names were both used."""
    try:
        return read()
    except RuntimeError:
        return _NOT


@contextlib.contextmanager
def thread_state_kept() -> Iterator[None]:
    """Restore torch's global switches after the block.

    The cache of autocast is cleared before and after: the training's cached weights belong to a graph that may be freed, those
    of the replay to its own graph. The backward runs in this thread on every device, so that its hooks are in the replay too.
    """
    before = [(read, put, value) for read, put in _switches() if (value := _read(read)) is not _NOT]
    was_threaded = _core("_is_multithreading_enabled")()
    torch.clear_autocast_cache()
    _core("_set_multithreading_enabled")(False)
    try:
        yield
    finally:
        _core("_set_multithreading_enabled")(was_threaded)
        for read, put, value in before:
            if _read(read) != value:
                put(value)
        torch.clear_autocast_cache()
