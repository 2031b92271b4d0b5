"""Reductions over a part of a tensor, where that part may be empty.

`mask` is True where an entry counts. What is masked out may be anything, NaN and inf included:
neither its value nor its derivative leaks. A row with nothing in it gives a stated value, and
gradient zero.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UsageError
from .eps import as_float, broadcast, choice, gate, saturate, widen

__all__ = [
    "masked_log_softmax",
    "masked_logsumexp",
    "masked_mean",
    "masked_softmax",
    "masked_sum",
]

Dims = int | tuple[int, ...] | None
REDUCTIONS = ("mean", "sum", "none")


def _dims(x: Tensor, dim: Dims) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(x.ndim))
    return (dim,) if isinstance(dim, int) else tuple(dim)


def _count(x: Tensor, dims: tuple[int, ...]) -> int:
    count = 1
    for d in dims:
        count *= x.shape[d]
    return count


def _check_mask(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise UsageError(
            f"`mask` must be a bool tensor, True where an entry counts, got {mask.dtype}; "
            "pass mask.bool() (or mask > 0.5)"
        )
    return mask


def _kept(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """(x with 0 where masked out, the mask as numbers), both in the compute dtype and one shape."""
    wide = widen(x)
    if mask is None:
        return wide, None
    wide, weight = broadcast(wide, _check_mask(mask).to(wide.dtype))
    return gate(wide, weight), weight


def _scaled_sum(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> tuple[Tensor, float]:
    """(sum / room, room), the room a power of two so large that no partial sum overflows."""
    # Few steps instead of the next power of two: torch.compile would recompile for each length.
    count = _count(x, dims)
    room = 2.0**8 if count <= 2**8 else 2.0**16 if count <= 2**16 else 2.0**40
    if x.ndim == 0:
        return x / room, room
    return (x * (1 / room)).sum(dims, keepdim=keepdim), room


def masked_sum(
    x: Tensor, mask: Tensor | None = None, dim: Dims = None, *, keepdim: bool = False
) -> Tensor:
    """The sum over the entries where `mask` is True; 0 with gradient zero where there is none.

    Prevents: `(x * mask).sum()` turning a NaN or inf that is masked out into NaN (0 * inf), and the
    overflow of a half precision sum (2048 ones times 32 in fp16). Accumulates in fp32 at least;
    a sum beyond the range is held at the dtype's largest number.

    >>> masked_sum(torch.tensor([1.0, float("nan")]), torch.tensor([True, False]))
    tensor(1.)
    """
    x = as_float(x)
    kept, _ = _kept(x, mask)
    total, room = _scaled_sum(kept, _dims(kept, dim), keepdim)
    return saturate(total * room, x.dtype).to(x.dtype)


def masked_mean(
    x: Tensor,
    mask: Tensor | None = None,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    empty: float = 0.0,
) -> Tensor:
    """The mean where `mask` is True; `empty` with gradient zero where there is nothing.

    Prevents: 0/0 for a row (or a batch) without a single valid entry, the NaN that a masked-out
    inf leaves behind, and the overflow of the sum although the mean itself is small.

    >>> masked_mean(torch.tensor([1.0, 3.0]), torch.tensor([False, False]))
    tensor(0.)
    """
    x = as_float(x)
    kept, weight = _kept(x, mask)
    dims = _dims(kept, dim)
    total, room = _scaled_sum(kept, dims, keepdim)
    if weight is None:
        size = _count(kept, dims)
        if size == 0:
            return (total * room).to(x.dtype) + empty
        return saturate(total * (room / size), x.dtype).to(x.dtype)
    count = weight.sum(dims, keepdim=keepdim) if kept.ndim else weight
    mean = saturate(total / count.clamp_min(1) * room, x.dtype).to(x.dtype)
    return mean.masked_fill(count == 0, empty)


def open_rows(x: Tensor, mask: Tensor | None, dim: int) -> tuple[Tensor, Tensor]:
    """(x with -inf where masked, 1 for each row that keeps something).

    A row with nothing to keep is all 0, so that softmax is defined on it. An entry of `x` that is
    -inf itself counts as masked. Every masked entry of a live row must be exactly -inf: a large
    finite number would win where all the live entries are lower.
    """
    if mask is not None:
        x, keep = broadcast(x, _check_mask(mask).to(x.dtype))
        x = gate(x, keep) + (1 - keep.reciprocal())  # plus 0 where kept, -inf where not
    live = (x.amax(dim, keepdim=True) != -math.inf).to(x.dtype)
    return gate(x, live.expand_as(x)), live


def masked_softmax(x: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    """softmax over the entries where `mask` is True; masked entries are 0, an empty row all 0.

    Prevents: NaN for a row whose entries are all -inf (a padded query, an empty neighborhood), in
    the forward and, when a later `where` discards it, in the backward. An entry that is -inf
    already counts as masked, so an additive mask works too.

    >>> masked_softmax(torch.zeros(2, 2), torch.tensor([[True, True], [False, False]]))
    tensor([[0.5000, 0.5000],
            [0.0000, 0.0000]])
    """
    filled, live = open_rows(as_float(x), mask, dim)
    return gate(F.softmax(filled, dim), live.expand_as(filled))


def masked_log_softmax(
    x: Tensor, mask: Tensor | None = None, dim: int = -1, *, masked_value: float | None = None
) -> Tensor:
    """log_softmax over the entries where `mask` is True; the others get `masked_value`.

    Prevents: NaN for a row that is all -inf, and the -inf of masked entries, which becomes NaN when
    it is multiplied by a target of 0. `masked_value` is the dtype's lowest number by default;
    exp of it is 0.

    >>> masked_log_softmax(torch.zeros(3), torch.tensor([True, True, False]), masked_value=-99)
    tensor([ -0.6931,  -0.6931, -99.0000])
    """
    filled, live = open_rows(as_float(x), mask, dim)
    lowest = torch.finfo(filled.dtype).min
    value = lowest if masked_value is None else masked_value
    keep = (filled != -math.inf).to(filled.dtype) * live
    log = gate(F.log_softmax(filled, dim), keep) + (1 - keep) * value
    return F.hardtanh(log, lowest, math.inf)


def masked_logsumexp(
    x: Tensor,
    mask: Tensor | None = None,
    dim: int = -1,
    *,
    keepdim: bool = False,
    empty: float | None = None,
) -> Tensor:
    """logsumexp over the entries where `mask` is True; `empty` where there is none.

    Prevents: the -inf of an empty row and the NaN of its gradient. `empty` is the dtype's lowest
    number by default (the finite stand-in for log 0).

    >>> masked_logsumexp(torch.zeros(2, 3), torch.tensor([[True] * 3, [False] * 3]), empty=0.0)
    tensor([1.0986, 0.0000])
    """
    filled, live = open_rows(as_float(x), mask, dim)
    value = torch.finfo(filled.dtype).min if empty is None else empty
    total = saturate(torch.logsumexp(filled, dim, keepdim=True)).masked_fill(live == 0, value)
    return total if keepdim else total.squeeze(dim)


def reduce_loss(loss: Tensor, reduction: str, weight_sum: Tensor | None = None) -> Tensor:
    """`loss` reduced as the losses say it; `weight_sum` replaces the count in a mean."""
    choice("reduction", reduction, REDUCTIONS)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return masked_sum(loss)
    if weight_sum is None:
        return masked_mean(loss)
    total, room = _scaled_sum(loss, _dims(loss, None), False)
    # A sum of weights that is 0 has only rows of weight 0 above it: 0 / 1.
    return saturate(total / (weight_sum + (weight_sum == 0)) * room)
