"""The interface of an operator's model: its call, and how it reports a possible failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..tape import Call
from .rounding import limit_of
from .shadow import Key, Span

__all__ = [
    "HANDLES_INF",
    "MODELS",
    "NEAR",
    "At",
    "Failure",
    "NotModeled",
    "is_loose",
    "model",
    "scalar_span",
]

LOOSE = 1e6
"""A range that is this many times wider than the observed values proves nothing: it is unknown."""
NEAR = 1e3
"""An overflow is reported only if the observed values are within this factor of the dtype's limit."""


class NotModeled(Exception):
    """Raised if the model does not support this call; the text says why."""


@dataclass(frozen=True)
class Failure:
    """One way in which an operator can return a non-finite value."""

    kind: str
    condition: str
    low: float | None = None
    high: float | None = None
    is_loose: bool = False
    """Whether the range is far wider than the observed values."""
    key: Key | None = None
    """The denominator, for a mask that leaves its zeros out."""
    is_bounded: bool = False
    """Where the denominator is not zero the quotient is small: then a mask is a full remedy."""


@dataclass
class At:
    """One call while its model runs."""

    call: Call
    dtype: torch.dtype
    """Of its first result."""
    batch_sizes: tuple[int, ...] = ()
    largest_part: float = 0.0
    """The largest magnitude in the data of the box."""
    captured_size: int | None = None
    """Rows of the captured batch."""
    variable: tuple[int, str, int] | None = None
    """A size that depends on the data, the message if it is 0, and its maximum."""
    failures: list[Failure] = field(default_factory=list)
    words: str = ""
    """A description of the result."""
    overflow: Failure | None = None
    """The message if the result exceeds the dtype's limit."""
    cancels: Key | None = None
    """A mask puts something else where this denominator is zero."""

    @property
    def name(self) -> str:
        return self.call.operation.op.removeprefix("aten.").rstrip("_")

    def fail(
        self, kind: str, where: Tensor | bool, condition: str, span: Span | None = None
    ) -> None:
        """Report a failure where `where` is true."""
        is_any = bool(where.any()) if isinstance(where, Tensor) else where
        if not is_any:
            return
        low = high = None
        if span is not None and span.lo.numel():
            low, high = float(span.lo.min()), float(span.hi.max())
        loose = span is not None and is_loose(span)
        key = span.facts.get("zero_iff", span.key) if span is not None else None
        self.failures.append(Failure(kind, condition, low, high, loose, key))

    def check_sum(self, total: Tensor, is_own: bool = False) -> None:
        """Sums on the way to the result must not be beyond the limit of what they are made in.

        That is float32 at least, or the result's own dtype where the kernel is so written.
        """
        wide = torch.float64 if self.dtype is torch.float64 else torch.float32
        wide = self.dtype if is_own else wide
        if bool((total > limit_of(wide)).any()):
            self.failures.append(Failure("overflow", "a partial sum overflows", is_loose=True))


def is_loose(span: Span) -> bool:
    """Whether the range is far wider than the observed values."""
    if span.seen is None or not span.lo.numel() or float(span.lo.min()) == 0.0:
        return False  # that a sum or a norm begins at 0 does not come from a wide range
    finite_lo, finite_hi = span.lo[span.lo.isfinite()], span.hi[span.hi.isfinite()]
    if not finite_lo.numel() or not finite_hi.numel():
        return False
    size = max(abs(float(finite_lo.min())), abs(float(finite_hi.max())))
    seen = max(abs(span.seen[0]), abs(span.seen[1]))
    return size > LOOSE * max(seen, 1e-3)


def scalar_span(value: Any, like: Span) -> Span:
    """A number in a call, as a range of one point."""
    t = torch.tensor(float(value), dtype=torch.float64)
    return Span(t, t, like.dtype, seen=(float(value), float(value)))


Model = Callable[..., Any]
_M = TypeVar("_M", bound=Model)
MODELS: dict[str, Model] = {}
HANDLES_INF: set[str] = set()
"""Operators whose models know what an infinite number that was written on purpose does."""


def model(*names: str, inf: bool = False) -> Callable[[_M], _M]:
    """Register the model of these operators (without "aten." and a trailing underscore)."""

    def register(function: _M) -> _M:
        for name in names:
            if name in MODELS:
                raise ValueError(f"two models for {name}")
            MODELS[name] = function
            if inf:
                HANDLES_INF.add(name)
        return function

    return register
