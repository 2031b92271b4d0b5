"""Context managers that change one thing for a replay and restore it bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from ..devices import autocast_devices
from ..runtime.ranks.groups import is_sharded
from ..runtime.ranks.shards import local
from ..runtime.state import TrainState
from ..runtime.step_changes import before_steps, limited_lr, other_rates

__all__ = [
    "filled",
    "fresh_optimizer",
    "higher_precision",
    "limited_lr",
    "root_gradient",
    "with_rates",
    "with_setting",
]

_HALF = (torch.float16, torch.bfloat16)


class _Widen(TorchFunctionMode):
    """Replaces half precision in the results and arguments of calls by another dtype.

    All arguments are widened, so that the dtypes of the user's code still match.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = kwargs or {}
        if name.endswith("_") or name in (
            "__get__",
            "__set__",
            "detach",
            "backward",
            "__setitem__",
        ):
            return func(*args, **kwargs)  # in place, or an attribute access: not a computation
        if name in ("half", "bfloat16"):
            return _widened(args[0], self._dtype)
        args = tuple(_widened(a, self._dtype) for a in args)
        kwargs = {k: _widened(v, self._dtype) for k, v in kwargs.items() if k != "out"} | (
            {"out": kwargs["out"]} if "out" in kwargs else {}
        )
        return func(*args, **kwargs)


def _widened(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.dtype):
        return dtype if value in _HALF else value
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype in _HALF else value
    if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
        is_plain = type(value) in (list, tuple)
        return type(value)(_widened(v, dtype) for v in value) if is_plain else value
    return value


@contextlib.contextmanager
def higher_precision(state: TrainState, dtype: torch.dtype = torch.float32) -> Iterator[None]:
    """Run everything in `dtype`: half parameters, buffers and moments are converted, autocast and casts are changed.

    The result of a step that is applied meanwhile is kept, rounded.
    """
    moments = [
        t for o in state.optimizers for entry in o.state.values() if isinstance(entry, dict)
        for t in entry.values() if isinstance(t, Tensor)
    ]  # fmt: skip
    named = [t for _, t in [*state.parameters(), *state.buffers]]
    # Sharded tensors are not converted, because FSDP2 identifies its parts by their memory. They are widened when they are
    # used, like other arguments.
    tensors = [t for t in [*named, *moments] if t.dtype in _HALF and not is_sharded(t)]
    kept = [t.data for t in tensors]
    with contextlib.ExitStack() as stack:
        for t, data in zip(tensors, kept):
            t.data = data.to(dtype)
        stack.callback(_put_back, tensors, kept)
        stack.enter_context(_no_autocast() if dtype == torch.float32 else _autocast_to(dtype))
        stack.enter_context(_Widen(dtype))
        yield


def _put_back(tensors: list[Tensor], kept: list[Tensor]) -> None:
    with torch.no_grad():
        for t, data in zip(tensors, kept):
            t.grad = None
            t.data = data.copy_(t.data)


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    """Disable autocast: the active one, and those that the step enters."""
    cls: Any = torch.amp.autocast_mode.autocast
    original = cls.__enter__

    def __enter__(self: Any) -> Any:
        was, self._enabled = self._enabled, False
        try:
            return original(self)
        finally:
            self._enabled = was

    active = [d for d in autocast_devices() if torch.is_autocast_enabled(d)]
    for device in active:
        torch.set_autocast_enabled(device, False)
    cls.__enter__ = __enter__
    try:
        yield
    finally:
        cls.__enter__ = original
        for device in active:
            torch.set_autocast_enabled(device, True)
        torch.clear_autocast_cache()


@contextlib.contextmanager
def _autocast_to(dtype: torch.dtype) -> Iterator[None]:
    """An autocast of the step with another precision."""
    cls: Any = torch.amp.autocast_mode.autocast
    original = cls.__enter__

    def __enter__(self: Any) -> Any:
        was, self.fast_dtype = self.fast_dtype, dtype
        try:
            return original(self)
        finally:
            self.fast_dtype = was

    cls.__enter__ = __enter__
    try:
        yield
    finally:
        cls.__enter__ = original
        torch.clear_autocast_cache()


@contextlib.contextmanager
def root_gradient(factor: float) -> Iterator[None]:
    """Start the backward with `factor` instead of 1, as if the loss were that much smaller."""
    original = Tensor.backward

    def backward(self: Tensor, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
        if gradient is None and self.numel() == 1:
            gradient = torch.full_like(self.detach(), factor, dtype=torch.float32).to(self.dtype)
        return original(self, gradient, *args, **kwargs)  # type: ignore[no-untyped-call]

    Tensor.backward = backward  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tensor.backward = original  # type: ignore[method-assign]


@contextlib.contextmanager
def with_setting(key: str, value: float | str) -> Iterator[None]:
    """Replace a setting of every optimizer during its step, whatever the loop has set: epsilon, rate."""

    def change(optimizer: Optimizer) -> Callable[[], None]:
        groups = [g for g in optimizer.param_groups if key in g]
        kept = [g[key] for g in groups]
        for g in groups:
            g[key] = value

        def undo() -> None:
            for g, old in zip(groups, kept):
                g[key] = old

        return undo

    with before_steps(change):
        yield


@contextlib.contextmanager
def with_rates(rates: Sequence[float]) -> Iterator[None]:
    """Replace the learning rate of each parameter group during its optimizer's step."""
    with before_steps(other_rates(lambda now: rates if len(rates) == len(now) else now)):
        yield


@contextlib.contextmanager
def fresh_optimizer(state: TrainState) -> Iterator[None]:
    """Reset the optimizers to their initial state."""
    kept = [dict(o.state) for o in state.optimizers]
    for o in state.optimizers:
        o.state.clear()
    try:
        yield
    finally:
        for o, entries in zip(state.optimizers, kept):
            o.state.clear()
            o.state.update(entries)


@contextlib.contextmanager
def filled(tensors: list[Tensor]) -> Iterator[None]:
    """Replace values that are not finite by zeros."""
    tensors = [local(t.detach()) for t in tensors]
    kept = [t.clone() for t in tensors]
    with torch.no_grad():
        for t in tensors:
            t.masked_fill_(~torch.isfinite(t), 0.0)
    try:
        yield
    finally:
        with torch.no_grad():
            for t, old in zip(tensors, kept):
                t.copy_(old)
