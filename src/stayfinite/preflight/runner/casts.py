"""Runs a training's step in another precision without changing its code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode

from ...investigate.changes import higher_precision
from ...patches.manager import Subscribers, Target, subscribe
from ...runtime.state import TrainState

__all__ = ["DTYPES", "autocast_off", "in_precision", "noting_autocast"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_AUTOCAST: Any = torch.amp.autocast_mode.autocast
_SWITCH = "check"


def in_precision(
    precision: str | None, state: TrainState, device: str
) -> contextlib.AbstractContextManager[Any]:
    """Run everything in this block in this precision; None changes nothing."""
    if precision is None:
        return contextlib.nullcontext()
    if precision == "fp32":
        return higher_precision(state)
    stack = contextlib.ExitStack()
    stack.enter_context(_autocast_everywhere(device, DTYPES[precision]))
    if precision == "fp16" and device == "cpu":
        stack.enter_context(_QuickHalf())  # type: ignore[no-untyped-call]
    return stack


@contextlib.contextmanager
def _autocast_everywhere(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Autocast with this dtype from here on, whatever dtype the training asks for.

    Regions that a module switches off for itself stay off: they protect what must be float32.
    """
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    target = Target(_AUTOCAST, "__enter__", "a step is tried in another precision", _SWITCH)
    patch = subscribe(target, _with_dtype, dtype)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    try:
        yield
    finally:
        patch.close()
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
        torch.clear_autocast_cache()


def _with_dtype(original: Any, subscribers: Subscribers) -> Any:
    def __enter__(context: Any) -> Any:
        if not subscribers or (not context._enabled and _is_inside_module()):
            return original(context)
        was = context._enabled, context.fast_dtype
        context._enabled, context.fast_dtype = True, subscribers[-1]
        try:
            return original(context)
        finally:
            context._enabled, context.fast_dtype = was

    return __enter__


_PRODUCTS = {
    "mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "convolution_backward",
    "_scaled_dot_product_flash_attention_for_cpu", "mkldnn_rnn_layer",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
}  # fmt: skip


class _QuickHalf(TorchDispatchMode):
    """Products of float16 on a CPU: computed in float32 and rounded, as a GPU's tensor cores do.

    Most CPUs have no float16 arithmetic, and emulate it twenty times more slowly.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        if name not in _PRODUCTS or not any(_is_half(a) for a in args):
            return func(*args, **kwargs)
        out = func(*map(_single, args), **{k: _single(v) for k, v in kwargs.items()})
        if isinstance(out, Tensor):
            return out.half()
        # The log-sum-exp that attention also gives is float32 in half precision, too.
        num_half = 1 if name.endswith("attention_for_cpu") else len(out)
        return tuple(o.half() if i < num_half and _is_single(o) else o for i, o in enumerate(out))


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float16


def _is_single(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float32


def _single(value: Any) -> Any:
    return value.float() if _is_half(value) else value


def _is_inside_module() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == torch_module.__file__:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def autocast_off(device: str) -> Iterator[None]:
    """A backward runs in the precision of its forward: outside of any autocast."""
    was = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, was)


@contextlib.contextmanager
def noting_autocast(seen: set[torch.dtype]) -> Iterator[None]:
    """Records the dtypes with which the training enters autocast."""
    target = Target(_AUTOCAST, "__enter__", "the dtype of autocast is noted", _SWITCH)
    with subscribe(target, _note_dtype, seen):
        yield


def _note_dtype(original: Any, subscribers: Subscribers) -> Any:
    def __enter__(context: Any) -> Any:
        if context._enabled:
            for seen in subscribers:
                seen.add(context.fast_dtype)
        return original(context)

    return __enter__


class HalfWatch(TorchDispatchMode):
    """Records whether an operator returns half precision, and whether one draws random numbers.

    >>> with HalfWatch() as watch:
    ...     x = torch.ones(2).half() * 2
    >>> watch.is_half, watch.is_random
    (True, False)
    >>> with HalfWatch() as watch:
    ...     x = torch.nn.functional.dropout(torch.ones(2))
    >>> watch.is_half, watch.is_random
    (False, True)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_half = self.is_random = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and not _is_idle(func, args, kwargs):
            self.is_random = True
        if isinstance(out, torch.Tensor) and out.dtype in (torch.float16, torch.bfloat16):
            self.is_half = True
        return out


def _is_idle(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    """An attention that could drop something and does not: it draws no random numbers."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[i] if i < len(args) else (kwargs or {}).get("dropout_p", 0.0)
            return bool(given == 0.0)
    return False
