"""Models of comparisons, logic and selections by a condition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .arithmetic import as_span, both_spans, reduces, same
from .call import At, NotModeled, model
from .rounding import tiny_of
from .shadow import Span

__all__ = ["refined"]

_NEGATED = {"gt": "le", "ge": "lt", "lt": "ge", "le": "gt", "eq": "ne", "ne": "eq"}


@model("gt", "ge", "lt", "le", "eq", "ne", "greater", "less", inf=True)
def compare(at: At, x: Span, y: Any) -> Span:
    name = {"greater": "gt", "less": "lt"}.get(at.name, at.name)
    y = as_span(y, x)
    sure, can = _compared(name, x, y)
    made = Span(sure.double(), can.double(), at.dtype)
    made.facts["cmp"] = (
        name,
        x.key,
        y.key,
        float(y.lo) if y.lo.numel() == 1 and y.is_point else None,
    )
    for a, b in ((x, y), (y, x)):
        extreme_of = b.facts.get("amax") or b.facts.get("amin")
        if name == "eq" and extreme_of is not None and reduces(extreme_of, a, b):
            made.facts["has_one"] = extreme_of[2]
    return made


def _compared(name: str, x: Span, y: Span) -> tuple[Tensor, Tensor]:
    if name in ("lt", "le"):
        return _compared({"lt": "gt", "le": "ge"}[name], y, x)
    if name == "gt":
        return x.lo > y.hi, x.hi > y.lo
    if name == "ge":
        return x.lo >= y.hi, x.hi >= y.lo
    can_be_equal = (x.lo <= y.hi) & (y.lo <= x.hi)
    is_equal = (x.lo == x.hi) & (y.lo == y.hi) & (x.lo == y.lo)
    if same(x, y):
        is_equal = torch.ones_like(can_be_equal)
    return (is_equal, can_be_equal) if name == "eq" else (~can_be_equal, ~is_equal)


@model(
    "logical_and",
    "logical_or",
    "logical_not",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_not",
)
def logic(at: At, x: Span, y: Any = None) -> Span:
    if at.dtype is not torch.bool:
        raise NotModeled("bits of whole numbers")
    if "not" in at.name:
        made = x.like(1 - x.hi.clamp(0, 1), 1 - x.lo.clamp(0, 1))
        if "cmp" in x.facts:
            name, *rest = x.facts["cmp"]
            made.facts["cmp"] = (_NEGATED[name], *rest)
        return made
    y = as_span(y, x)
    if "and" in at.name:
        return x.like(torch.minimum(x.lo, y.lo), torch.minimum(x.hi, y.hi))
    if "xor" in at.name:
        shape = torch.broadcast_shapes(x.shape, y.shape)
        return x.like(torch.zeros(shape), torch.ones(shape))
    return x.like(torch.maximum(x.lo, y.lo), torch.maximum(x.hi, y.hi))


def refined(x: Span, cond: Span, is_true: bool) -> Span:
    """What x is where the condition holds (or does not), if the condition is about x."""
    fact = cond.facts.get("cmp")
    if fact is None or x.key is None:
        return x
    name, left, _, number = fact
    if left != x.key or number is None or cond.shape != x.shape:
        return x
    name = name if is_true else _NEGATED[name]
    step = tiny_of(x.dtype) if x.dtype.is_floating_point and number == 0 else 0.0
    smallest = (
        float(torch.finfo(x.dtype).smallest_normal) * float(torch.finfo(x.dtype).eps)
        if step
        else 0.0
    )
    lo, hi = x.lo, x.hi
    if name in ("gt", "ge"):
        lo = lo.clamp(min=number + (smallest if name == "gt" else 0.0))
    elif name in ("lt", "le"):
        hi = hi.clamp(max=number - (smallest if name == "lt" else 0.0))
    elif name == "ne" and smallest:
        lo = torch.where(lo == number, torch.full_like(lo, number + smallest), lo)
        hi = torch.where(hi == number, torch.full_like(hi, number - smallest), hi)
    return Span(lo, hi, x.dtype)


@model("where", inf=True)
def where(at: At, cond: Span, x: Any = None, y: Any = None) -> Span:
    if x is None or y is None:
        raise NotModeled("the number of results changes with the data")
    x, y = both_spans(x, y)
    x, y = refined(x, cond, True), refined(y, cond, False)
    lo = torch.where(cond.lo >= 1, x.lo, torch.where(cond.hi < 1, y.lo, torch.minimum(x.lo, y.lo)))
    hi = torch.where(cond.lo >= 1, x.hi, torch.where(cond.hi < 1, y.hi, torch.maximum(x.hi, y.hi)))
    return Span(lo, hi, at.dtype)


@model("masked_fill", inf=True)
def masked_fill(at: At, x: Span, mask: Span, value: Any) -> Span:
    fact = mask.facts.get("cmp")
    if fact is not None and fact[0] == "eq" and fact[3] == 0:
        at.cancels = fact[1]
    return where(at, mask, as_span(value, x), x)
