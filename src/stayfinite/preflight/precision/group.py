"""The precision group: the same step in float32, bfloat16 and float16, layer by layer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ..flow.group import at_location
from ..probes import Checks, Probe, Seen, Subject
from ..records import Finding, failed, passed, skipped
from .judges import (
    judge_agreement,
    judge_headroom,
    judge_scaler,
    judge_underflow,
    judge_weights,
    recommended_scale,
)

__all__ = ["precision"]

GROUP = "precision"
_NAMES = {"bf16": "bfloat16", "fp16": "float16"}


def precision(subject: Subject) -> Checks:
    """Headroom, underflow and error in half precision; fails only for what the training uses."""
    if not subject.batches:
        return [skipped(GROUP, "precision/any", "no batch was seen")]
    with _no_dropout(subject):
        return (yield from _compare(subject))


def _compare(subject: Subject) -> Checks:
    batch = subject.batches[0]
    full = yield Probe(batch=batch, name="float32", precision="fp32", watch=True, note_half=True)
    if full.error is not None or not full.is_finite:
        return [skipped(GROUP, "precision/any", "the step does not work in float32: see forward")]
    noisy: set[str] = set()
    if full.is_random:
        with _other_noise(subject):
            other = yield Probe(batch=batch, name="float32 again", precision="fp32", watch=True)
        noisy = _differing(full, other)
    used = used_dtype(subject)
    found = judge_weights(subject)
    found += yield from _half(subject, "bf16", full, noisy, (None,), is_used=used == "bfloat16")
    scale = recommended_scale(full.layers)
    tried: list[float] = []
    found += yield from _half(
        subject, "fp16", full, noisy, _falling(scale, tried), is_used=used == "float16"
    )
    found += judge_headroom(full.layers, is_used=used == "float16")
    found += judge_underflow(full.layers, is_used=used == "float16")
    found += judge_scaler(subject, full, tried[-1], is_used=used == "float16")
    return found


def _falling(scale: float, tried: list[float]) -> Iterator[float]:
    """Loss scales from the recommended one down to 1, as a GradScaler would try them."""
    while scale > 1:
        tried.append(scale)
        yield scale
        scale = scale / 16
    tried.append(1.0)
    yield 1.0


def used_dtype(subject: Subject) -> str | None:
    """float16 or bfloat16 where the training computes in it; None for float32."""
    if subject.autocast_dtype is not None:
        return subject.autocast_dtype
    sizes: dict[str, int] = {}
    for _, p in subject.parameters():
        name = str(p.dtype).removeprefix("torch.")
        sizes[name] = sizes.get(name, 0) + p.numel()
    most = max(sizes, key=lambda n: sizes[n], default="float32")
    return most if most in ("float16", "bfloat16") else None


def _half(
    subject: Subject,
    short: str,
    full: Seen,
    noisy: set[str],
    scales: Iterable[float | None],
    *,
    is_used: bool,
) -> Generator[Probe, Seen, list[Finding]]:
    check, name = f"precision/{short}", _NAMES[short]
    batch = subject.batches[0]
    seen, scale = Seen(name), None
    for scale in scales:
        seen = yield Probe(batch=batch, name=name, precision=short, watch=True, scale=scale)
        if seen.error is not None or seen.is_finite:
            break
    unused = "" if is_used else f"{name} is not used; "
    if seen.error is not None:
        if is_used:
            action = f"compute this part in float32, or do not use {name}"
            where = os.path.basename(seen.error_at.partition(" ")[0])
            return [failed(GROUP, check, seen.error, action, subject=where, weight=8)]
        return [skipped(GROUP, check, f"{unused}the step raises {seen.error}")]
    if not seen.is_finite:
        traced = yield Probe(
            batch=batch, name=f"{name}, traced", precision=short, trace=True, scale=scale
        )
        where, words = at_location(traced.location)
        first = next((x.module for x in seen.layers if x.num_bad), where)
        text = f"{unused}the step is not finite in {name}{words}"
        if not is_used:
            return [passed(GROUP, check, f"{text}; keep {first or 'it'} in float32", subject=first)]
        action = (
            f"run {first or 'this operation'} in float32: torch.autocast(enabled=False) round it"
        )
        return [failed(GROUP, check, text, action, subject=where or first, weight=9)]
    return judge_agreement(check, name, full, seen, noisy, is_used=is_used)


def _differing(a: Seen, b: Seen) -> set[str]:
    """Modules whose output depends on random numbers."""
    others = {layer.module: layer.sample for layer in b.layers}
    return {
        layer.module
        for layer in a.layers
        if layer.sample is None
        or others.get(layer.module) is None
        or not torch.equal(layer.sample, others[layer.module])  # type: ignore[arg-type]
    }


@contextlib.contextmanager
def _no_dropout(subject: Subject) -> Iterator[None]:
    """The dtype decides how many random numbers a dropout draws: without it, steps compare."""
    kept: list[tuple[nn.Module, str, float]] = []
    for _, module in subject.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            kept.append((module, "p", module.p))
        elif isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
            kept.append((module, "dropout", module.dropout))
    try:
        for module, name, _ in kept:
            setattr(module, name, 0.0)
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)


@contextlib.contextmanager
def _other_noise(subject: Subject) -> Iterator[None]:
    """The same step with other random numbers: they are drawn on before the model is called."""

    def draw(module: nn.Module, args: Any) -> None:
        torch.rand(7)

    handles = [m.register_forward_pre_hook(draw) for m in subject.models.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
