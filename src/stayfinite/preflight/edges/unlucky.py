"""Tries extreme random draws, with the probability of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["MODES", "Unlucky", "UnluckyInteger", "UnluckyNormal", "UnluckyRandom"]

_UNIFORM: set[Any] = {torch.rand, torch.rand_like}
_NORMAL: set[Any] = {torch.randn, torch.randn_like, Tensor.normal_}
_INTEGER: set[Any] = {torch.randint, torch.randint_like}
_CHANCE = {
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
"""How often one draw of this dtype is exactly 0: its random bits are those of the mantissa."""
_SIGMAS = 5.0


class Unlucky(TorchFunctionMode):
    """The first number of every draw of one kind is an unlucky one."""

    def __init__(self) -> None:
        super().__init__()
        self.chance = 0.0
        """Of such a number in the step that ran under this."""

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
        if isinstance(result, Tensor) and result.numel():
            with torch.no_grad():
                result, chance = self.with_unlucky(func, args, given, result)
            self.chance += chance
        return result

    def with_unlucky(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor
    ) -> tuple[Tensor, float]:
        """The result with its unlucky number, and how often a call draws one; 0 for another call."""
        raise NotImplementedError


class UnluckyRandom(Unlucky):
    """The first number of every uniform draw is this one.

    >>> with UnluckyRandom(0.0) as mode:
    ...     x = torch.rand(3)
    >>> float(x[0]), bool(x[1] > 0), mode.chance == 3 * 2**-24
    (0.0, True, True)
    """

    def __init__(self, value: float, each: float = 2.0**-24) -> None:
        super().__init__()
        self._value, self._each = value, each

    def with_unlucky(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor
    ) -> tuple[Tensor, float]:
        is_unit = func in _UNIFORM or (func is Tensor.uniform_ and len(args) == 1 and not kwargs)
        if not is_unit:
            return result, 0.0
        result.view(-1)[0] = self._value
        own = _CHANCE if self._value == 0.0 else {}
        return result, own.get(result.dtype, self._each) * result.numel()


class UnluckyInteger(Unlucky):
    """The first number of every draw of whole numbers is the lowest, or the highest.

    >>> with UnluckyInteger(is_high=True) as mode:
    ...     x = torch.randint(0, 100, (4,))
    >>> int(x[0]), mode.chance
    (99, 0.04)
    """

    def __init__(self, is_high: bool) -> None:
        super().__init__()
        self._is_high = is_high

    def with_unlucky(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor
    ) -> tuple[Tensor, float]:
        if func not in _INTEGER:
            return result, 0.0
        ends = [a for a in args if isinstance(a, int) and not isinstance(a, bool)]
        ends = [kwargs[k] for k in ("low", "high") if k in kwargs] or ends
        low, high = (0, ends[0]) if len(ends) == 1 else (ends[0], ends[1])
        if high - low < 2:
            return result, 0.0
        result.view(-1)[0] = high - 1 if self._is_high else low
        return result, result.numel() / (high - low)


class UnluckyNormal(Unlucky):
    """The first number of every normal draw is five deviations from the mean."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self._value = sign * _SIGMAS

    def with_unlucky(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor
    ) -> tuple[Tensor, float]:
        is_standard = func in _NORMAL and (
            func is not Tensor.normal_ or len(args) == 1 > len(kwargs)
        )
        if not is_standard or not result.is_floating_point():
            return result, 0.0
        result.view(-1)[0] = self._value
        return result, 0.5 * math.erfc(_SIGMAS / math.sqrt(2)) * result.numel()


MODES: tuple[tuple[str, Callable[[], Unlucky]], ...] = (
    (
        "one of the largest numbers that torch.rand gives (bfloat16 rounds it to 1)",
        lambda: UnluckyRandom(1 - 2.0**-10, 2.0**-9),
    ),
    (
        "one of the largest numbers that torch.rand gives (float16 rounds it to 1)",
        lambda: UnluckyRandom(1 - 2.0**-13, 2.0**-12),
    ),
    ("the smallest number that torch.rand gives", lambda: UnluckyRandom(0.0)),
    ("the largest number that torch.rand gives", lambda: UnluckyRandom(1 - 2.0**-24)),
    ("the smallest number that torch.randint gives", lambda: UnluckyInteger(False)),
    ("the largest number that torch.randint gives", lambda: UnluckyInteger(True)),
    ("a normal draw of 5 deviations", lambda: UnluckyNormal(1.0)),
    ("a normal draw of -5 deviations", lambda: UnluckyNormal(-1.0)),
)
"""(what it is, makes the mode)"""
