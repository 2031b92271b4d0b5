"""Tries dead ReLU units: a channel of a sample, units of a whole batch, a whole layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["DEAD", "DeadUnits"]

_RELUS: set[Any] = {
    F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_,
}  # fmt: skip
_IN_PLACE: set[Any] = {F.relu_, torch.relu_, Tensor.relu_}

How = Callable[[Tensor, Tensor], float]


class DeadUnits(TorchFunctionMode):
    """Every ReLU gives exactly 0 at some units, as it does where its input is negative.

    >>> with DeadUnits(_some_of_all) as mode:
    ...     y = torch.relu(torch.ones(2, 5))
    >>> y.tolist(), mode.is_used
    ([[0.0, 0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0, 1.0]], True)
    """

    def __init__(self, how: How) -> None:
        super().__init__()
        self._how = how
        self.chance = 0.0
        """How often a step has such units, as far as observed."""

    @property
    def is_used(self) -> bool:
        return self.chance > 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        if func not in _RELUS or not isinstance(result, Tensor) or result.dim() < 2:
            return result
        is_dead = torch.zeros(result.shape, dtype=torch.bool, device=result.device)
        chance = self._how(result.detach(), is_dead)
        if not chance:
            return result
        self.chance += chance
        # No product: where the real ReLU is off, it hands no gradient back, be it infinite.
        if func in _IN_PLACE or given.get("inplace") or (func is F.relu and True in args[1:]):
            return result.masked_fill_(is_dead, 0.0)
        return result.masked_fill(is_dead, 0.0)


def _channels(t: Tensor) -> int:
    """Where its units are: a convolution's second dimension, else the last one."""
    return 1 if t.dim() >= 4 else t.dim() - 1


def _one_channel(t: Tensor, is_dead: Tensor) -> float:
    """One channel of one sample."""
    if t.dim() < 3 or not t.shape[0] or t.shape[_channels(t)] < 2:
        return 0.0
    is_dead[:1].select(_channels(t), 0).fill_(True)
    return 1.0


def _some_of_all(t: Tensor, is_dead: Tensor) -> float:
    """Two units in the whole batch, where that is not most of them."""
    dim = _channels(t)
    if t.shape[dim] < 5:
        return 0.0
    is_dead.narrow(dim, 0, 2).fill_(True)
    return 1.0


def _all_at_one_place(t: Tensor, is_dead: Tensor) -> float:
    """Every unit of one sample (of one pixel): as likely as each unit's own zeros make it.

    Units are taken to be independent, and one that was never off to be off once in as many looks again.
    """
    units = t.movedim(_channels(t), -1).flatten(0, -2)
    if not units.numel():
        return 0.0
    places = len(units)
    shares = ((units == 0).sum(0) + 1).double() / (places + 2)
    is_dead.movedim(_channels(t), -1)[(0,) * (t.dim() - 1)] = True
    return places * math.exp(float(shares.log().sum()))


DEAD: tuple[tuple[str, How, bool], ...] = (
    ("one channel of one sample that every ReLU has switched off", _one_channel, False),
    ("two units that every ReLU has switched off for a whole batch", _some_of_all, False),
    ("one place where every ReLU has switched off all of its units", _all_at_one_place, True),
)
"""(what it is, which units, whether its chance is known)"""
