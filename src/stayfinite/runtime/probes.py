"""Named probes inside a model; free while healthy, named in the incident."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from ..numerics.health import stats
from ..records import TensorStats

__all__ = ["Reading", "describe", "listen", "probe"]

_T = TypeVar("_T", bound=Tensor)
_recorder: Callable[[str, Tensor], None] | None = None


@dataclass(frozen=True)
class Reading:
    """What a probe recorded when the bad step was replayed."""

    name: str
    stats: TensorStats


def probe(name: str, tensor: _T) -> _T:
    """Name a place inside a model; returns the tensor unchanged.

    It does nothing while the training is healthy. When a bad step is replayed, the incident names the first
    probe with a value that is not finite, and that value's statistics.

        h = probe("after the router", self.router(x))

    >>> import torch
    >>> x = torch.ones(2)
    >>> probe("input", x) is x
    True
    """
    if _recorder is not None:
        _recorder(name, tensor)
    return tensor


def listen(recorder: Callable[[str, Tensor], None] | None) -> None:
    """Hand every probe's tensor to `recorder` from now on; None ends it."""
    global _recorder
    _recorder = recorder


def read(name: str, tensor: Tensor) -> Reading:
    """The reading of one probe."""
    return Reading(name, stats(tensor))


def describe(readings: list[Reading]) -> str:
    """A sentence about the first probe that is not finite; empty without probes.

    >>> good = TensorStats(shape=(2,), dtype="float32", num_elements=2, min=0.0, max=1.0)
    >>> bad = TensorStats(shape=(2,), dtype="float32", num_elements=2, num_nan=1, min=3.0, max=3.0)
    >>> describe([Reading("in", good), Reading("router", bad)])
    "the first probe that is not finite is 'router' (1 NaN, 0 Inf of 2; the rest 3 to 3); 'in' before it was finite"
    """
    first = next((i for i, r in enumerate(readings) if not r.stats.is_finite), None)
    if first is None:
        names = ", ".join(repr(r.name) for r in readings[:8])
        return f"every probe was finite: {names}" if readings else ""
    s = readings[first].stats
    rest = f"; the rest {s.min:.4g} to {s.max:.4g}" if s.min is not None else ""
    text = (
        f"the first probe that is not finite is {readings[first].name!r} ({s.num_nan} NaN, "
        f"{s.num_posinf + s.num_neginf} Inf of {s.num_elements}{rest})"
    )
    return text + (f"; {readings[first - 1].name!r} before it was finite" if first else "")
