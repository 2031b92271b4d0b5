"""A loss of several parts that continues with the finite ones."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import NonFiniteError, UsageError

__all__ = ["PartTally", "finite_mean", "finite_sum", "listeners"]

listeners: weakref.WeakSet[Any] = weakref.WeakSet()
"""Who hears of it (`on_bad_parts`) when a part was left out; the open guards are."""

Parts = Mapping[str, Tensor] | Sequence[Tensor]
Weights = Mapping[str, float] | Sequence[float] | None


class PartTally:
    """How often each part was left out.

    >>> tally = PartTally()
    >>> loss = finite_sum({"a": torch.tensor(1.0), "b": torch.tensor(float("nan"))}, tally=tally)
    >>> tally.bad, tally.num_calls
    (Counter({'b': 1}), 1)
    """

    def __init__(self) -> None:
        self.bad: Counter[str] = Counter()
        self.num_calls = 0


def finite_sum(parts: Parts, *, weights: Weights = None, tally: PartTally | None = None) -> Tensor:
    """The sum of those parts that are finite; raises when none is.

    A part that is not finite is left out of the graph altogether, so its 0 * NaN cannot come back in
    the backward: the gradient is that of the other parts alone. It costs one read of the device.

    >>> finite_sum([torch.tensor(1.0), torch.tensor(float("inf")), torch.tensor(2.0)])
    tensor(3.)
    """
    kept, _ = _finite(parts, weights, tally)
    return _total(kept)


def finite_mean(parts: Parts, *, weights: Weights = None, tally: PartTally | None = None) -> Tensor:
    """The (weighted) mean of those parts that are finite; raises when none is.

    >>> heads = {"cls": torch.tensor(1.0), "box": torch.tensor(float("nan")), "mask": torch.tensor(2.0)}
    >>> finite_mean(heads)
    tensor(1.5000)
    >>> finite_mean({"cls": torch.tensor(float("nan"))})
    Traceback (most recent call last):
    stayfinite.errors.NonFiniteError: every part of the loss is not finite: cls is nan
      try: look at what they share, the input or the trunk of the model
    """
    kept, total = _finite(parts, weights, tally)
    return _total(kept) / total


def _total(kept: list[Tensor]) -> Tensor:
    result = kept[0]
    for part in kept[1:]:
        result = result + part
    return result


def _finite(parts: Parts, weights: Weights, tally: PartTally | None) -> tuple[list[Tensor], float]:
    named = _named(parts)
    factors = _factors(named, weights)
    flags = torch.stack([torch.isfinite(p.detach()).reshape(()) for p in named.values()]).tolist()
    bad = [name for name, is_good in zip(named, flags) if not is_good]
    if tally is not None:
        tally.num_calls += 1
        tally.bad.update(bad)
    if bad:
        for listener in list(listeners):
            listener.on_bad_parts(tuple(bad), len(named))
    if len(bad) == len(named):
        values = ", ".join(f"{n} is {float(p.detach())}" for n, p in named.items())
        raise NonFiniteError(
            f"every part of the loss is not finite: {values}\n"
            "  try: look at what they share, the input or the trunk of the model"
        )
    good = [n for n in named if n not in set(bad)]
    kept = [named[n] if factors[n] == 1.0 else named[n] * factors[n] for n in good]
    return kept, sum(factors[n] for n in good)


def _named(parts: Parts) -> dict[str, Tensor]:
    if isinstance(parts, Tensor):
        raise UsageError("`parts` must be a dict or a list of scalar losses, got one tensor")
    named = (
        dict(parts) if isinstance(parts, Mapping) else {f"part {i}": p for i, p in enumerate(parts)}
    )
    if not named:
        raise UsageError("`parts` is empty: there is nothing to add up")
    for name, part in named.items():
        if not isinstance(part, Tensor) or part.numel() != 1:
            seen = f"shape {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
            raise UsageError(f"each part must be a scalar tensor, but {name!r} has {seen}")
    return named


def _factors(named: dict[str, Tensor], weights: Weights) -> dict[str, float]:
    if weights is None:
        return dict.fromkeys(named, 1.0)
    if isinstance(weights, Mapping):
        wrong = sorted(set(named) ^ set(weights))
        if wrong:
            raise UsageError(f"`weights` and `parts` must have the same names; look at {wrong}")
        found = {n: float(weights[n]) for n in named}
    else:
        if len(weights) != len(named):
            raise UsageError(f"{len(named)} parts need as many weights, got {len(weights)}")
        found = {n: float(w) for n, w in zip(named, weights)}
    negative = [n for n, w in found.items() if not w > 0]
    if negative:
        raise UsageError(f"weights must be above 0, got {found[negative[0]]} for {negative[0]!r}")
    return found
