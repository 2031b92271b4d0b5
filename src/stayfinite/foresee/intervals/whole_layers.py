"""Models of layers that are one operator (recurrent layers, bags, CTC), and of the loss scale."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..tape import refs_in
from .arithmetic import hull, product
from .call import At, NotModeled, model
from .shadow import Span

__all__: list[str] = []


@model("mkldnn_rnn_layer")
def recurrent(at: At, x: Span, w_in: Span, w_hidden: Span, b1: Span, b2: Span, hidden: Span, cell: Span,
              *more: Any) -> tuple[Span, ...]:  # fmt: skip
    """A layer of an LSTM: its output is a tanh times a sigmoid, its cell grows by at most 1 a time."""
    refs = list(refs_in(at.call.results))
    if len(refs) < 3 or cell.lo.numel() == 0 or w_in.shape[0] != 4 * hidden.shape[-1]:
        raise NotModeled("a recurrent layer that is no LSTM")
    reach = torch.maximum(hidden.mag.max(), torch.ones((), dtype=torch.float64))
    at.check_sum(x.mag.max() * w_in.mag.sum(1) + reach * w_hidden.mag.sum(1) + b1.mag + b2.mag)
    one = torch.ones(refs[0].shape, dtype=torch.float64)
    top = (cell.mag.max() + x.shape[0] + x.shape[1]).expand(refs[2].shape)
    last = torch.ones(refs[1].shape, dtype=torch.float64)
    made = [Span(-one, one, at.dtype), Span(-last, last, at.dtype), Span(-top, top, at.dtype)]
    for ref in refs[3:]:  # what it keeps for its backward
        size = torch.full(
            ref.shape,
            255.0 if not ref.dtype.is_floating_point else float(top.max()),
            dtype=torch.float64,
        )
        made.append(Span(-size, size, ref.dtype))
    return tuple(made)


@model("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(at: At, weight: Span, index: Span, offsets: Span, scale: bool = False, mode: int = 0,
                  sparse: bool = False, each: Span | None = None, *_: Any) -> tuple[Span, ...]:  # fmt: skip
    """Sums (mode 0), means or largest of rows of the table; a bag may hold any number of them."""
    refs = list(refs_in(at.call.results))
    shape = refs[0].shape
    low, high = weight.lo.amin(0), weight.hi.amax(0)
    if mode == 0:
        many = index.lo.numel() * (
            float(each.mag.max()) if each is not None and each.lo.numel() else 1.0
        )
        top = torch.maximum(low.abs(), high.abs()) * many * 1.001
        low, high = (
            (-top if each is not None or bool((low < 0).any()) else torch.zeros_like(top)),
            top,
        )
    zero = torch.zeros_like(low)  # a bag of nothing
    made = [
        Span(
            torch.minimum(low, zero).expand(shape),
            torch.maximum(high, zero).expand(shape),
            at.dtype,
        )
    ]
    for ref in refs[1:]:
        top = torch.full(
            ref.shape, float(max(1, index.lo.numel(), weight.shape[0])), dtype=torch.float64
        )
        made.append(Span(torch.zeros_like(top) - 1, top, ref.dtype))
    return tuple(made)


@model("_ctc_loss", inf=True)
def ctc_loss(at: At, x: Span, target: Span, lengths: Any, target_lengths: Any, blank: int = 0,
             zero_infinity: bool = False) -> tuple[Span, ...]:  # fmt: skip
    """A target needs a step for each label and one more between two that are the same."""
    tight = any(2 * t - 1 > n for n, t in zip(_ends(lengths, False), _ends(target_lengths, True)))
    at.fail(
        "infeasible_target",
        tight and not zero_infinity,
        "a target does not fit into the length of its input",
    )
    at.fail(
        "infeasible_target", bool((x.lo == -math.inf).any()), "a label has probability 0 (-inf)", x
    )
    refs = list(refs_in(at.call.results))
    top = x.mag.clamp(max=1e30).sum((0, 2)) if x.lo.dim() == 3 else x.mag.sum()
    size = (top + 100.0).expand(refs[0].shape)
    spread = torch.full(refs[1].shape, float(size.max()), dtype=torch.float64)
    return Span(torch.zeros_like(size), size, at.dtype), Span(-spread, spread, at.dtype)


def _ends(value: Any, is_top: bool) -> list[float]:
    if isinstance(value, Span):
        return [float(v) for v in (value.hi if is_top else value.lo).flatten()]
    return [float(v) for v in value]


@model("_amp_foreach_non_finite_check_and_unscale")
def unscale(at: At, gradients: Any, found: Span, inverse: Span) -> list[Span]:
    """Gradients that are not finite are noted, and the step is left out."""
    made = [product(At(at.call, g.dtype), g, inverse) for g in gradients]
    return [*made, Span(torch.zeros_like(found.lo), torch.ones_like(found.hi), found.dtype)]


@model("_amp_update_scale")
def update_scale(at: At, scale: Span, tracker: Span, found: Span, growth: float, backoff: float,
                 interval: int) -> list[Span]:  # fmt: skip
    low = scale.like(scale.lo * backoff, scale.hi * growth)
    return [
        hull(scale, low),
        Span(
            torch.zeros_like(tracker.lo),
            torch.full_like(tracker.hi, float(interval)),
            tracker.dtype,
        ),
    ]
