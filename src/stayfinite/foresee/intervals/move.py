"""Models of operators that move, copy, select or create elements without computing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..tape import refs_in
from .arithmetic import as_span, hull
from .call import At, Failure, NotModeled, model
from .linear import linear_map
from .rounding import limit_of
from .shadow import Span

__all__: list[str] = []


@model("clone", "alias", "contiguous", "copy", "_to_copy", "lift_fresh_copy", "lift_fresh", "detach", "_unsafe_view",
       "view_copy", "_reshape_copy", "expand_copy", "to", inf=True)  # fmt: skip
def clone(at: At, x: Span, *more: Any, **_: Any) -> Span:
    if at.name == "copy" and more and isinstance(more[0], Span):
        x = Span(
            more[0].lo.expand(x.shape),
            more[0].hi.expand(x.shape),
            more[0].dtype,
            facts=more[0].facts,
            words=more[0].words,
        )
    elif at.name == "copy":
        value = as_span(more[0], x).lo.expand(x.shape)
        x = Span(value, value, x.dtype)
    at.words = x.words
    if at.dtype.is_floating_point and x.lo.numel():
        at.overflow = _too_large(at, x)
    lo, hi = x.lo, x.hi
    if not at.dtype.is_floating_point and x.dtype.is_floating_point:
        lo, hi = (torch.trunc(lo), torch.trunc(hi)) if at.dtype is not torch.bool else _truth(x)
    elif at.dtype is torch.bool and x.dtype is not torch.bool:
        lo, hi = _truth(x)
    made = Span(lo, hi, at.dtype)
    made.facts = dict(x.facts)
    if lo.shape != torch.Size(next(refs_in(at.call.results)).shape):
        made = made.mapped(lambda t: t.reshape(next(refs_in(at.call.results)).shape))
    return made


def _too_large(at: At, x: Span) -> Failure:
    """A cast of data, or of what is about as large as the data: that is no wide range of ours."""
    name = str(at.dtype).removeprefix("torch.")
    said = f"{x.words or 'what is cast'} is beyond {limit_of(at.dtype):g}, the limit of {name}"
    low, high = float(x.lo.min()), float(x.hi.max())
    is_data = max(abs(low), abs(high)) <= 10 * at.largest_part
    return Failure("low_precision_overflow", said, low, high, is_loose=not is_data)


def _truth(x: Span) -> tuple[Tensor, Tensor]:
    return ((x.lo > 0) | (x.hi < 0)).double(), ((x.lo != 0) | (x.hi != 0)).double()


@model("zeros_like", "new_zeros", "zero", "ones_like", "new_ones", "full_like", "new_full", "fill", "empty_like",
       "new_empty", "new_empty_strided", "zeros", "ones", "full", "empty", "empty_strided", "scalar_tensor", inf=True)  # fmt: skip
def constant(at: At, *args: Any, **named: Any) -> Span:
    refs = list(refs_in(at.call.results)) or list(refs_in(at.call.args))
    shape = refs[0].shape
    value: Any = 1.0 if "ones" in at.name else 0.0
    if "full" in at.name or at.name == "fill":
        value = named.get("fill_value", named.get("value", args[-1] if len(args) > 1 else 0.0))
        value = args[2] if at.name == "new_full" and len(args) > 2 else value
    if isinstance(value, Span):
        return Span(value.lo.expand(shape), value.hi.expand(shape), at.dtype)
    t = torch.full(shape, float(value), dtype=torch.float64)
    return Span(t, t, at.dtype)


@model("cat", "concat", "stack", "hstack", "vstack", inf=True)
def cat(at: At, tensors: Any, dim: int = 0) -> Span:
    join = torch.stack if at.name == "stack" else torch.cat
    if at.name in ("hstack", "vstack"):
        raise NotModeled(at.name)
    spans = list(tensors)
    return Span(join([s.lo for s in spans], dim), join([s.hi for s in spans], dim), at.dtype)


@model(
    "repeat",
    "roll",
    "flip",
    "tril",
    "triu",
    "permute_copy",
    "unfold_copy",
    "rot90",
    "pixel_shuffle",
    inf=True,
)
def moved(at: At, x: Span, *more: Any, **named: Any) -> Span:
    func = at.call.func
    if at.call.is_written:
        func = getattr(torch, at.name)
    return x.mapped(lambda t: func(t.contiguous(), *more, **named))


@model("repeat_interleave")
def repeat_interleave(at: At, x: Span, *more: Any, **named: Any) -> Span:
    raise NotModeled("the number of results changes with the data")


def _hull_along(x: Span, dim: int, shape: Any) -> Span:
    if not x.lo.numel():
        raise NotModeled("a selection from nothing")
    low, high = x.lo.amin(dim, keepdim=True), x.hi.amax(dim, keepdim=True)
    return Span(low.expand(shape), high.expand(shape), x.dtype)


@model("gather", inf=True)
def gather(at: At, x: Span, dim: int, index: Span, sparse_grad: bool = False) -> Span:
    if index.is_point:
        return x.mapped(lambda t: t.gather(dim, index.lo.long()))
    sizes = list(x.shape)
    part = x
    for d, size in enumerate(index.shape):
        if d != dim % len(sizes):
            part = part.mapped(lambda t, d=d, size=size: t.narrow(d, 0, size))
    return _hull_along(part, dim, tuple(index.shape))


@model("index_select", inf=True)
def index_select(at: At, x: Span, dim: int, index: Span) -> Span:
    if index.is_point:
        return x.mapped(lambda t: t.index_select(dim, index.lo.long()))
    shape = list(x.shape)
    shape[dim] = index.lo.numel()
    return _hull_along(x, dim, shape)


@model("index", inf=True)
def index(at: At, x: Span, indices: Any) -> Span:
    given = [i for i in indices if i is not None]
    shape = next(refs_in(at.call.results)).shape
    if all(i.is_point for i in given):
        real = [None if i is None else _as_index(i) for i in indices]
        return x.mapped(lambda t: torch.ops.aten.index.Tensor(t, real))
    masks = [i for i in given if i.dtype in (torch.bool, torch.uint8)]
    if not x.lo.numel():
        raise NotModeled("a selection from nothing")
    if masks:
        at.variable = (shape[0] if shape else 1, _none_selected(masks[0]), masks[0].lo.numel())
    # Dimensions that no index touches stay apart where they are at the end.
    used = sum(i.lo.dim() if i.dtype is torch.bool else 1 for i in given)
    is_leading = all(i is not None for i in indices[: len(given)])
    if is_leading and used <= x.lo.dim():
        low, high = x.lo.flatten(0, used - 1).amin(0), x.hi.flatten(0, used - 1).amax(0)
        return Span(low.expand(shape), high.expand(shape), x.dtype)
    return Span(x.lo.min().expand(shape), x.hi.max().expand(shape), x.dtype)


def _as_index(i: Span) -> Tensor:
    return i.lo.bool() if i.dtype in (torch.bool, torch.uint8) else i.lo.long()


def _none_selected(mask: Span) -> str:
    return f"{mask.words or 'the mask'} selects nothing"


@model("masked_select", inf=True)
def masked_select(at: At, x: Span, mask: Span) -> Span:
    shape = next(refs_in(at.call.results)).shape
    if not x.lo.numel():
        raise NotModeled("a selection from nothing")
    at.variable = (shape[0], _none_selected(mask), mask.lo.numel())
    return Span(x.lo.min().expand(shape), x.hi.max().expand(shape), x.dtype)


@model("nonzero")
def nonzero(at: At, x: Span) -> Span:
    shape = next(refs_in(at.call.results)).shape
    at.variable = (shape[0], _none_selected(x), x.lo.numel())
    sizes = torch.tensor([float(s - 1) for s in x.shape], dtype=torch.float64)
    return Span(torch.zeros(shape, dtype=torch.float64), sizes.expand(shape), torch.int64)


@model("_unique2", "unique_dim", "_unique")
def unique(at: At, x: Span, *_: Any, **__: Any) -> Span:
    raise NotModeled("the number of results changes with the data")


@model("scatter", "scatter_add", "index_add", "scatter_reduce", "index_put", "_index_put_impl", "_unsafe_index_put",
       "index_copy", "masked_scatter", "index_fill", inf=True)  # fmt: skip
def scatter(at: At, x: Span, *args: Any, **named: Any) -> Span:
    """What is put somewhere: exact where the places are known, else anywhere."""
    name = at.name.replace("_index_put_impl", "index_put").replace("_unsafe_", "")
    if name == "index_put":
        indices, value = args[0], args[1]
        is_sum = bool(args[2]) if len(args) > 2 else bool(named.get("accumulate", False))
        return _index_put(at, x, indices, value, is_sum)
    if name in ("masked_scatter", "index_fill"):
        value = as_span(args[-1], x)
        return hull(
            x, Span(value.lo.min().expand(x.shape), value.hi.max().expand(x.shape), x.dtype)
        )
    if name == "scatter_reduce" and (args[3] if len(args) > 3 else named.get("reduce")) != "sum":
        raise NotModeled("a scatter that multiplies, or takes the mean or the largest")
    if named.get("reduce") and name == "scatter":
        raise NotModeled("a scatter that adds or multiplies")
    dim, where, value = int(args[0]), args[1], as_span(args[2], x)
    is_sum = name in ("scatter_add", "index_add", "scatter_reduce")
    if is_sum and named.get("alpha", 1) != 1:
        raise NotModeled("a factor")
    if where.is_point:
        return _put(x, name, dim, where.lo.long(), value)
    return _anywhere(x, dim, value, is_sum)


def _put(x: Span, name: str, dim: int, where: Tensor, value: Span) -> Span:
    def put(base: Tensor, v: Tensor) -> Tensor:
        base = base.clone()
        if name == "scatter":
            return base.scatter(dim, where, v.expand(where.shape) if v.dim() == 0 else v)
        if name == "index_copy":
            return base.index_copy(dim, where, v)
        if name == "index_add":
            return base.index_add(dim, where, v)
        return base.scatter_add(dim, where, v)

    slack = 0.0 if name in ("scatter", "index_copy") else 1e-5
    made = Span(put(x.lo, value.lo), put(x.hi, value.hi), x.dtype)
    if slack:
        size = put(x.mag, value.mag) * slack
        positive = bool((x.lo >= 0).all()) and bool((value.lo >= 0).all())
        low = (made.lo - size).clamp(min=0.0) if positive else made.lo - size
        return Span(low, made.hi + size, x.dtype)
    return made


def _anywhere(x: Span, dim: int, value: Span, is_sum: bool) -> Span:
    lo, hi = value.lo, value.hi
    if lo.dim() != x.lo.dim() or lo.dim() == 0:
        lo, hi = lo.min().expand(x.shape), hi.max().expand(x.shape)
    if is_sum:
        low = lo.clamp(max=0).sum().expand(x.shape)
        high = hi.clamp(min=0).sum().expand(x.shape)
        if all(d == dim % x.lo.dim() or a == b for d, (a, b) in enumerate(zip(lo.shape, x.shape))):
            low = lo.clamp(max=0).sum(dim, keepdim=True).expand(x.shape)
            high = hi.clamp(min=0).sum(dim, keepdim=True).expand(x.shape)
        slack = 1e-5
        return Span(x.lo + low * (1 + slack), x.hi + high * (1 + slack), x.dtype)
    return Span(torch.minimum(x.lo, lo.min()), torch.maximum(x.hi, hi.max()), x.dtype)


def _index_put(at: At, x: Span, indices: Any, value: Any, is_sum: bool) -> Span:
    value = as_span(value, x)
    given = [i for i in indices if i is not None]
    if all(i.is_point for i in given):
        real = [None if i is None else _as_index(i) for i in indices]

        def put(base: Tensor, v: Tensor) -> Tensor:
            return torch.ops.aten.index_put.default(base.clone(), real, v.contiguous(), is_sum)  # type: ignore[no-any-return]

        made = Span(put(x.lo, value.lo), put(x.hi, value.hi), x.dtype)
        size = put(x.mag, value.mag) * (1e-5 if is_sum else 0.0)
        return Span(made.lo - size, made.hi + size, x.dtype)
    if not value.lo.numel():
        return x
    if is_sum:
        n = float(max(1, next(iter(given)).lo.numel()))
        rest = value.lo.numel() if value.lo.dim() else n
        return Span(
            x.lo + value.lo.min().clamp(max=0) * rest,
            x.hi + value.hi.max().clamp(min=0) * rest,
            x.dtype,
        )
    return Span(torch.minimum(x.lo, value.lo.min()), torch.maximum(x.hi, value.hi.max()), x.dtype)


@model("sort", "topk", "kthvalue", "median", "argsort", inf=True)
def sort(at: At, x: Span, *more: Any, **named: Any) -> Any:
    refs = list(refs_in(at.call.results))
    if at.name == "median" and not more and "dim" not in named:
        return Span(x.lo.min(), x.hi.max(), x.dtype)
    dim = -1
    if at.name in ("topk", "kthvalue") and len(more) > 1:
        dim = int(more[1])
    elif at.name in ("sort", "argsort", "median") and more:
        dim = int(more[-1] if isinstance(more[0], bool) and len(more) > 1 else more[0])
    dim = int(named.get("dim", dim))
    shape = refs[0].shape
    size = x.shape[dim] if x.lo.dim() else 1
    index = Span(
        torch.zeros(shape, dtype=torch.float64),
        torch.full(shape, size - 1.0, dtype=torch.float64),
        torch.int64,
    )
    if at.name == "argsort":
        return index
    if at.name == "sort":
        is_down = bool(
            named.get(
                "descending", more[1] if len(more) > 1 and isinstance(more[1], bool) else False
            )
        )
        return Span(x.lo.sort(dim, is_down)[0], x.hi.sort(dim, is_down)[0], x.dtype), index
    low = x.lo.amin(dim, keepdim=True) if x.lo.dim() else x.lo
    high = x.hi.amax(dim, keepdim=True) if x.lo.dim() else x.hi
    if len(shape) != low.dim():
        low, high = low.squeeze(dim), high.squeeze(dim)
    if at.name == "topk" and bool(named.get("largest", True)) and (len(more) < 3 or more[2]):
        both = [t.topk(shape[dim] if shape else 1, dim)[0] for t in (x.lo, x.hi)]
        return Span(both[0], both[1], x.dtype), index
    return Span(low.expand(shape), high.expand(shape), x.dtype), index


@model("bincount")
def bincount(at: At, x: Span, weights: Span | None = None, minlength: int = 0) -> Span:
    shape = next(refs_in(at.call.results)).shape
    top = float(weights.mag.sum()) if weights is not None else float(x.lo.numel())
    at.words = f"the count of {x.words}" if x.words else "a count"
    low = (
        torch.zeros(shape, dtype=torch.float64)
        if weights is None
        else torch.full(shape, -top, dtype=torch.float64)
    )
    return Span(low, torch.full(shape, top, dtype=torch.float64), at.dtype)


@model("embedding_dense_backward")
def embedding_backward(at: At, grad: Span, index: Span, num: int, *_: Any) -> Span:
    flat = grad.mag.reshape(-1, grad.shape[-1])
    top = flat.sum(0).expand(num, grad.shape[-1]) * 1.001
    return Span(-top, top, grad.dtype)


@model("select_backward", "slice_backward", "diagonal_backward", "unfold_backward", "as_strided_scatter",
       "slice_scatter", "select_scatter", "index_select_backward", "max_pool2d_with_indices_backward")  # fmt: skip
def put_back(at: At, grad: Span, *more: Any, **named: Any) -> Span:
    func = at.call.func
    if at.name in ("slice_scatter", "select_scatter"):
        src, *rest = more
        return Span(
            func(grad.lo.contiguous(), src.lo, *rest, **named),
            func(grad.hi.contiguous(), src.hi, *rest, **named),
            at.dtype,
        )
    if at.name == "as_strided_scatter" or any(isinstance(m, Span) for m in more):
        shape = next(refs_in(at.call.results)).shape
        top = float(grad.mag.sum())
        return Span(
            torch.full(shape, -top, dtype=torch.float64),
            torch.full(shape, top, dtype=torch.float64),
            at.dtype,
        )
    return linear_map(at, lambda t: func(t.contiguous(), *more, **named), grad, 64)


@model("trace", "diagonal_copy", "diag_embed", inf=False)
def diagonal(at: At, x: Span, *more: Any, **named: Any) -> Span:
    if at.name == "trace":
        return linear_map(at, torch.trace, x, x.shape[0])
    return x.mapped(lambda t: at.call.func(t, *more, **named))


@model("isnan", "isinf", "isfinite", "isneginf", "isposinf", inf=True)
def tests(at: At, x: Span) -> Span:
    """A program may look for what is not finite: in the box both answers are possible."""
    yes = at.name == "isfinite"
    has_inf = (x.lo == -math.inf) | (x.hi == math.inf)
    low = torch.full(x.shape, float(yes), dtype=torch.float64)
    high = low.clone()
    if at.name != "isnan":
        (low if yes else high)[has_inf] = 0.0 if yes else 1.0
    return Span(low, high, torch.bool)
