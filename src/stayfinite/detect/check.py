"""The check before each optimizer step: one fused pass over loss and gradients, and at most one read.

It is pure: tensors in, a verdict out. It does not change what it checks: the kernel multiplies by 1, and the version
counters of the gradients are preserved, so that a graph over a gradient can still be differentiated.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..numerics.health import FiniteFlag, numbers_of

__all__ = ["Seen", "StepCheck", "bad_rate", "number_of"]

_INF = math.inf
_item = torch._C.TensorBase.item


class Seen(NamedTuple):
    """The figures of a finite step, as far as they were read."""

    loss: float | None
    norm: float | None


class StepCheck:
    """Checks loss and gradients before an optimizer step.

    >>> check = StepCheck()
    >>> check.check([torch.ones(2)], [torch.tensor(0.5)])
    Seen(loss=0.5, norm=None)
    >>> check.check([torch.tensor([math.nan])], [torch.tensor(0.5)]) is None
    True
    """

    def __init__(self, syncs: bool = True) -> None:
        self._flags: dict[torch.device, FiniteFlag] = {}
        self._here = self.flag_on(torch.device("cpu"))
        self._value = _item if syncs else _in_memory

    def check(
        self, grads: Sequence[Tensor], losses: Sequence[Tensor], norm: Tensor | None = None
    ) -> Seen | None:
        """The figures of a finite step; None if something is not finite.

        `norm`: the total gradient norm, if the loop has computed it; then the gradients are not read.
        """
        figures = self.check_on_host(grads, losses[0], norm) if len(losses) == 1 else None
        return Seen(*figures) if figures is not None else self._check_all(grads, losses, norm)

    def check_on_host(
        self, grads: Sequence[Tensor], loss: Tensor, norm: Tensor | None
    ) -> tuple[float, float | None] | None:
        """The fast case of `check`: one loss, on the CPU. None if a value is not finite or this case does not apply."""
        figure = None
        if norm is not None:
            if type(norm) is not Tensor or not norm.is_cpu or norm.is_complex():
                return None
            figure = self._value(norm)
            if not -_INF < figure < _INF:
                return None
        elif not grads or not grads[0].is_cpu or not self._here.takes(grads):
            return None
        if loss.is_complex():
            return None
        value = self._value(loss)
        return (value, figure) if -_INF < value < _INF else None

    def _check_all(
        self, grads: Sequence[Tensor], losses: Sequence[Tensor], norm: Tensor | None
    ) -> Seen | None:
        """The general case of `check`, with a single read from the device."""
        flag: FiniteFlag | None = None
        scalars = [*([norm] if norm is not None else []), *losses]
        if norm is None and grads:
            device = grads[0].device
            flag = self._flags.get(device) or self._new_flag(device)
            flag.fold(grads)
        if flag is None and not scalars:
            return Seen(None, None)
        values = _read(flag, scalars)
        if values is None:
            return None
        return Seen(values[-1] if losses else None, values[0] if norm is not None else None)

    def flag_on(self, device: torch.device) -> FiniteFlag:
        """The flag of this device."""
        return self._flags.get(device) or self._new_flag(device)

    def _new_flag(self, device: torch.device) -> FiniteFlag:
        flag = self._flags[device] = FiniteFlag(device)
        return flag


def _read(flag: FiniteFlag | None, scalars: list[Tensor]) -> list[float] | None:
    """Read all values at once; None if one of them, or a tensor that was folded into the flag, is not finite."""
    parts = [flag.value, *scalars] if flag is not None else scalars
    is_here = all(t.device.type == "cpu" for t in parts)
    device, dtype = parts[0].device, torch.float64 if is_here else torch.float32
    flat = [_real(t).to(device, dtype).reshape(()) for t in parts]
    values = numbers_of(flat)
    is_bad = not all(map(math.isfinite, values))
    if flag is not None and values.pop(0) != 0.0:
        flag.reset()
        is_bad = True
    return None if is_bad else values


def _in_memory(number: Tensor) -> float:
    """Read a CPU scalar directly from memory, without calling an operator."""
    if number.is_cpu and number.dtype in (torch.float32, torch.float64):
        return float(number.detach().numpy())
    return float(_item(number))


def _real(t: Tensor) -> Tensor:
    return t.detach().abs() if t.is_complex() else t.detach()


def bad_rate(group: dict[str, Any]) -> float | None:
    """The learning rate if it is not finite; rates in tensors are not read here.

    >>> bad_rate({"lr": 0.1}), bad_rate({"lr": math.inf})
    (None, inf)
    """
    rate = group.get("lr")
    if not isinstance(rate, numbers.Real) or math.isfinite(rate):
        return None
    return float(rate)


def number_of(value: Any) -> float | None:
    """A loss, norm or scale as a number; None if it is not a real scalar."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            return None
        return float(value.detach())
    return float(value)
