"""Keeps the results of one line finite in a replay, to prove that it is the only cause.

Bad values at that line are replaced by what a safe operator would return: zero for a NaN, a bounded number for an infinity,
in the forward and in the backward of the line.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..locate.frames import Place, backward_place, current_place
from ..locate.notes import COLLECTIVES
from ..numerics.health import badness
from ..records import Link
from ..runtime.ranks.shards import local

__all__ = ["FlooredDivisors", "LimitedGradient", "PatchedLine"]

_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_")
_BOUND = 1e6


def _results(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> list[Tensor]:
    """The floating-point results, including those written in place."""
    found = [t for t in (out if isinstance(out, (list, tuple)) else [out]) if isinstance(t, Tensor)]
    names = [a.name for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
    named = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
    for name in names:
        value = named.get(name)
        found += [
            t
            for t in (value if isinstance(value, (list, tuple)) else [value])
            if isinstance(t, Tensor)
        ]
    found = [local(t) for t in found]
    return [t for t in found if t.is_floating_point() and t.layout == torch.strided]


class _Watch(TorchDispatchMode):
    """Observes the results of every operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_changed = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace not in COLLECTIVES:
            with torch.no_grad():
                self.look(func, args, kwargs, out)
        return out

    def look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        raise NotImplementedError


class PatchedLine(_Watch):
    """Makes the bad results of the line of `birth` finite.

    `drops_factor` omits a product with a constant: the loss without its scale.
    """

    def __init__(self, birth: Link, drops_factor: bool = False) -> None:
        super().__init__()
        self._birth = birth
        self._at = (birth.file, birth.line)
        self._kernel = (birth.kernel or birth.op or "").split(".")[-1]
        self._drops_factor = drops_factor
        self._anomaly: Any = None

    def __reduce__(self) -> Any:
        return PatchedLine, (self._birth, self._drops_factor)

    def __enter__(self) -> Any:
        # Anomaly mode, without its checks, records the forward line of every autograd node.
        self._anomaly = torch.autograd.set_detect_anomaly(True, check_nan=False)
        self._anomaly.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        self._anomaly.__exit__(*exc)

    def look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        short = func._schema.name.split("::")[-1]
        if self._drops_factor:
            self._without_factor(short, args, out)
            return
        is_fresh = short in _EMPTY and self._kernel in _EMPTY
        for t in _results(func, args, kwargs, out):
            if torch._debug_has_internal_overlap(t) != 0:
                continue
            if (is_fresh or badness(t)) and self._is_here():
                self.num_changed += 1
                self._make_safe(t, short, is_fresh)

    def _without_factor(self, short: str, args: tuple[Any, ...], out: Any) -> None:
        if short == "mul" and isinstance(out, Tensor) and badness(out) and self._is_here():
            factors = [a for a in args if isinstance(a, Tensor) and a.shape == out.shape]
            if factors:
                self.num_changed += 1
                out.copy_(factors[0])

    def _make_safe(self, t: Tensor, short: str, is_fresh: bool) -> None:
        if is_fresh:
            t.zero_()
            return
        limit = torch.finfo(t.dtype).max
        high = min(_BOUND, math.sqrt(limit) / 2)
        low = math.log(torch.finfo(t.dtype).tiny) if short.startswith("log") else -high
        t.nan_to_num_(nan=0.0, posinf=high, neginf=low)

    def _is_here(self) -> bool:
        node = torch._C._current_autograd_node()
        if node is None:
            return self._matches(current_place())
        return self._matches(backward_place(node).place)

    def _matches(self, place: Place) -> bool:
        user = place.user
        if user is None:
            return self._at[0] is None
        return user.line == self._at[1] and _same(user.file, self._at[0])


def _same(a: str, b: str | None) -> bool:
    return b is not None and (a == b or a.rpartition("/")[2] == b.rpartition("/")[2])


class LimitedGradient(_Watch):
    """Clamps every gradient in the backward, like hooks between the layers."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self._limit = limit

    def __reduce__(self) -> Any:
        return LimitedGradient, (self._limit,)

    def look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if torch._C._current_autograd_node() is None:
            return
        for t in _results(func, args, kwargs, out):
            if torch._debug_has_internal_overlap(t) == 0:  # not an expanded scalar
                t.clamp_(-self._limit, self._limit)


class FlooredDivisors(TorchDispatchMode):
    """Replaces divisors below the epsilon of their dtype; records the line of the smallest one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place: tuple[str, int] | None = None
        self.smallest = math.inf

    def __reduce__(self) -> Any:
        return FlooredDivisors, ()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        at = {"aten::div": 1, "aten::div_": 1, "aten::reciprocal": 0}.get(func._schema.name)
        divisor = args[at] if at is not None and len(args) > at else None
        if isinstance(divisor, Tensor) and divisor.is_floating_point():
            args = (*args[:at], self._floored(divisor), *args[(at or 0) + 1 :])
        return func(*args, **(kwargs or {}))

    def _floored(self, divisor: Tensor) -> Tensor:
        floor = torch.finfo(divisor.dtype).eps
        is_small = divisor.abs() < floor
        if not bool(is_small.any()):
            return divisor
        smallest = float(divisor.abs().min())
        user = current_place().user
        is_forward = torch._C._current_autograd_node() is None
        if is_forward and user is not None and smallest < self.smallest:
            self.smallest, self.place = smallest, (user.file, user.line)
        floors = torch.full_like(divisor, floor).copysign(divisor)
        return torch.where(is_small, floors, divisor)
