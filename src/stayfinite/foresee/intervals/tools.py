"""Helpers for operator calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..tape import Call, Capture, Opaque, Ref, refs_in
from .call import NotModeled
from .rounding import limit_of
from .shadow import Span

__all__ = [
    "all_spans",
    "assumed",
    "has_opaque",
    "has_written_inf",
    "last_uses",
    "paired",
    "reads",
    "replaced",
    "tensors",
    "turns_positive",
    "unwritten",
    "written_by",
]


def reads(call: Call, given: list[Ref]) -> list[Ref]:
    """What its result depends on: not the running statistics that a training norm only updates."""
    if "batch_norm" in call.operation.op and len(call.args) > 5 and call.args[5] is True:
        statistics = {id(r) for r in refs_in(call.args[3:5])}
        return [r for r in given if id(r) not in statistics]
    return given


def unwritten(call: Call) -> list[tuple[Ref, Span]]:
    found = []
    for ref in refs_in(call.results):
        t = torch.full(ref.shape, math.nan, dtype=torch.float64)
        found.append((ref, Span(t, t, ref.dtype)))
    return found


def last_uses(capture: Capture) -> dict[int, list[int]]:
    last: dict[int, int] = {}
    for call in capture.calls:
        for ref in refs_in((call.args, call.kwargs, call.results)):
            last[ref.storage] = call.operation.index
    kept = {p.ref.storage for p in capture.parts}
    found: dict[int, list[int]] = {}
    for storage, index in last.items():
        if storage not in kept:
            found.setdefault(index, []).append(storage)
    return found


def written_by(call: Call) -> list[Ref]:
    """The tensors that the operator writes into, as its schema says."""
    if not call.is_written:
        return []
    found: list[Ref] = []
    for i, argument in enumerate(call.func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = call.args[i] if i < len(call.args) else call.kwargs.get(argument.name)
            found += list(refs_in(value))
    return found


def paired(results: Any, spans: Any) -> list[tuple[Ref, Span]]:
    refs = results if isinstance(results, (list, tuple)) else (results,)
    values = spans if isinstance(spans, (list, tuple)) else (spans,)
    if len(values) < len([r for r in refs if isinstance(r, Ref)]):
        raise NotModeled(f"{len(refs)} results")
    return [(r, s) for r, s in zip(refs, values) if isinstance(r, Ref) and isinstance(s, Span)]


def tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from tensors(v)


def all_spans(value: Any) -> Iterable[Span]:
    if isinstance(value, Span):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from all_spans(v)
    elif isinstance(value, dict):
        yield from all_spans(list(value.values()))


def replaced(value: Any, change: Callable[[Ref], Any]) -> Any:
    """The same arguments with something else for every tensor."""
    if isinstance(value, Ref):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [replaced(v, change) for v in value]
    if isinstance(value, dict):
        return {k: replaced(v, change) for k, v in value.items()}
    return value


def has_opaque(value: Any) -> bool:
    if isinstance(value, Opaque):
        return True
    if isinstance(value, dict):
        return has_opaque(list(value.values()))
    return isinstance(value, (list, tuple)) and any(has_opaque(v) for v in value)


def has_written_inf(call: Call) -> bool:
    numbers = [*call.args, *call.kwargs.values()]
    return any(isinstance(a, float) and math.isinf(a) for a in numbers)


def turns_positive(call: Call, made: Iterable[Span], given: Iterable[Span]) -> bool:
    """A mask's -inf is there on purpose; what makes +inf of it is not."""
    if not any(s.has_inf and _has_plus(s) for s in made) or has_written_inf(call):
        return False
    return not any(_has_plus(s) for s in given)


def _has_plus(span: Span) -> bool:
    return bool((span.hi == math.inf).any())


def assumed(call: Call, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A substitute for unknown values: ten times the observed ones."""
    low, high = call.operation.seen_lo, call.operation.seen_hi
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        low, high = -1.0, 1.0
    size = 10 * max(abs(low), abs(high))
    if dtype.is_floating_point:
        size = min(size, limit_of(dtype))
    bottom = -size if low < 0 else min(low, high) / 10
    return torch.tensor(bottom, dtype=torch.float64), torch.tensor(size, dtype=torch.float64)
