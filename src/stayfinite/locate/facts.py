"""Measures what is available only at the birth of a bad value: the inputs, and the positions at which they were bad."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..devices import widest
from ..numerics.health import Badness, dense_parts, stats
from ..records import Operand

__all__ = ["Given", "bad_mask", "birth_facts", "describe_operands"]

_MAX_TENSORS = 8
_SOFTMAX = {"_softmax", "_log_softmax", "logsumexp", "_safe_softmax"}


@dataclass(frozen=True)
class Given:
    """A tensor argument: its values before the call, and the tensor itself."""

    name: str
    values: Tensor
    live: Tensor


def describe_operands(
    given: Sequence[Given],
    numbers: Mapping[str, Any],
    bad_results: Sequence[tuple[Tensor, Badness]],
    is_pointwise: bool,
    label: Callable[[Tensor], str | None],
) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """Statistics of the inputs and outputs."""
    mask = bad_mask(bad_results[0][0]) if is_pointwise else None
    ranked = sorted(given, key=lambda g: dense_parts(g.values) == [])[:_MAX_TENSORS]
    inputs = [
        Operand(
            name=g.name,
            stats=stats(g.values),
            label=label(g.live),
            stats_at_bad=_stats_where(g.values, mask),
        )
        for g in ranked
    ]
    for name, value in numbers.items():
        if isinstance(value, (bool, int, float, str, torch.dtype)) or (
            isinstance(value, (list, tuple)) and all(isinstance(v, (int, float)) for v in value)
        ):
            inputs.append(Operand(name=name, value=str(value).removeprefix("torch.")))
    outputs = [Operand(name="result", stats=stats(t)) for t, _ in bad_results[:_MAX_TENSORS]]
    return tuple(inputs), tuple(outputs)


def bad_mask(result: Tensor) -> Tensor | None:
    """A mask of the bad elements of a result; None for layouts without elementwise access."""
    if result.layout != torch.strided or hasattr(result, "device_mesh"):
        return None
    is_nan = torch.isnan(result)
    # If a NaN was made, infinities at other places (a mask) are not the cause.
    return is_nan if bool(is_nan.any()) else ~torch.isfinite(result)


def _stats_where(values: Tensor, mask: Tensor | None) -> Any:
    if mask is None or values.layout != torch.strided or hasattr(values, "device_mesh"):
        return None
    try:
        chosen = values.expand(mask.shape)[mask] if values.shape != mask.shape else values[mask]
    except (RuntimeError, IndexError):
        return None
    return stats(chosen)


def birth_facts(
    short: str,
    named: Mapping[str, Any],
    given: Sequence[Given],
    bad_results: Sequence[tuple[Tensor, Badness]],
    is_pointwise: bool,
) -> tuple[bool, bool, dict[str, float]]:
    """(whether a NaN was made from inputs without NaN, whether an Inf was made from good inputs, measurements)."""
    facts: dict[str, float] = {}
    fresh_nan = fresh_inf = False
    if is_pointwise and len(bad_results) == 1:
        fresh_nan, fresh_inf = _fresh(bad_results[0][0], given)
    if short in _SOFTMAX:
        facts.update(_masked_rows(named))
    if short.startswith("_scaled_dot_product"):
        facts.update(_masked_attention(named))
    if short in {
        "mean",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "nll_loss_forward",
        "nll_loss2d_forward",
        "sum",
    }:
        facts.update(_reduced(named, bad_results[0][0]))
    if short in {"mm", "bmm", "addmm", "baddbmm", "convolution", "_to_copy", "mul", "add", "sum"}:
        facts.update(_magnitude_in_double(named))
    return fresh_nan, fresh_inf, facts


def _fresh(result: Tensor, given: Sequence[Given]) -> tuple[bool, bool]:
    """The number of bad elements that were computed from good elements."""
    if result.layout != torch.strided or hasattr(result, "device_mesh"):
        return False, False
    had_nan = torch.zeros((), dtype=torch.bool, device=result.device)
    had_bad = torch.zeros((), dtype=torch.bool, device=result.device)
    for g in given:
        if not (g.values.is_floating_point() or g.values.is_complex()):
            continue
        try:
            had_nan = had_nan | torch.isnan(g.values)
            had_bad = had_bad | ~torch.isfinite(g.values)
        except RuntimeError:
            return False, False
    is_nan = torch.isnan(result)
    is_inf = torch.isinf(result)
    return bool((is_nan & ~had_bad).any()), bool((is_inf & ~had_bad).any())


def _masked_rows(named: Mapping[str, Any]) -> dict[str, float]:
    values, dim = named.get("self"), named.get("dim")
    if not isinstance(values, Tensor) or dim is None:
        return {}
    values = values.detach()
    dims = list(dim) if isinstance(dim, (list, tuple)) else [dim]
    row = torch.isneginf(values)
    poison = torch.isnan(values) | torch.isposinf(values)
    for d in sorted((d % values.dim() for d in dims), reverse=True) if values.dim() else []:
        row, poison = row.all(d), poison.any(d)
    return {"rows_all_neginf": float(row.sum()), "rows_with_nan_or_posinf": float(poison.sum())}


def _masked_attention(named: Mapping[str, Any]) -> dict[str, float]:
    """The number of rows of an attention mask that allow nothing."""
    mask = named.get("attn_mask")
    if not isinstance(mask, Tensor):
        mask = named.get("attn_bias")
    if not isinstance(mask, Tensor) or mask.dim() == 0:
        return {}
    shut = ~mask if mask.dtype == torch.bool else torch.isneginf(mask)
    return {"rows_all_neginf": float(shut.all(-1).sum()), "rows_with_nan_or_posinf": 0.0}


def _reduced(named: Mapping[str, Any], result: Tensor) -> dict[str, float]:
    values = named.get("self")
    if not isinstance(values, Tensor):
        return {}
    facts = {"num_reduced": values.numel() / max(1, result.numel())}
    target, ignored = named.get("target"), named.get("ignore_index")
    if isinstance(target, Tensor) and ignored is not None:
        facts["num_reduced"] = float((target != ignored).sum())
        weight = named.get("weight")
        if isinstance(weight, Tensor):
            kept = target[target != ignored]
            facts["weight_sum"] = float(weight[kept.clamp(0)].sum()) if kept.numel() else 0.0
    return facts


def _magnitude_in_double(named: Mapping[str, Any]) -> dict[str, float]:
    """An estimate of the result without the dtype's limit (a bound for products)."""
    tensors = [v for v in named.values() if isinstance(v, Tensor) and v.is_floating_point()]
    peaks = []
    for t in tensors[:3]:
        wide = [p.to(widest(t.device)) for p in dense_parts(t.detach())]  # a sparse one: its values
        finite = [f for p in wide if (f := p[torch.isfinite(p)]).numel()]
        peaks.append(max((float(f.abs().max()) for f in finite), default=0.0))
    return {f"abs_max_{i}": p for i, p in enumerate(peaks)}
