"""Judges half precision from the values seen in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from ..flow.scale import leaves_of
from ..layers import few
from ..probes import LayerSeen, Seen, Subject
from ..records import Finding, failed, passed, warned

__all__ = [
    "judge_agreement",
    "judge_headroom",
    "judge_scaler",
    "judge_underflow",
    "judge_weights",
    "recommended_scale",
]

GROUP = "precision"

FP16_MAX = 65504.0
LEAST_BITS = 2.0
"""Activations grow while training; less than a factor of four to the limit is too near."""
GRADIENT_BITS = 3
"""Room that the recommended loss scale leaves above the largest gradient."""
DEFAULT_SCALE = 65536.0
"""Where torch's GradScaler starts."""
MOST_UNDERFLOW = 0.5
MOST_GRAD_UNDERFLOW = 0.05
MOST_ERROR = 0.5
KEEP_ERROR = 0.1


def bits_left(layer: LayerSeen) -> float:
    """How many times the largest value in this layer can double before float16 overflows."""
    largest = max(layer.abs_max, layer.peak)
    return math.log2(FP16_MAX / largest) if largest > 0 else math.inf


def judge_headroom(layers: Sequence[LayerSeen], *, is_used: bool) -> list[Finding]:
    """The layers nearest to float16's end, from the float32 step."""
    leaves = leaves_of(layers)
    own = [x for x in layers if x in leaves or x.peak > 0]
    if not own:
        return []
    near = sorted((x for x in own if bits_left(x) < LEAST_BITS), key=bits_left)
    least = min(own, key=bits_left)
    if not near:
        text = (
            f"at least {bits_left(least):.1f} bits to float16's limit, "
            f"{f'least in module {least.module}' if least.module else 'in the model'}"
        )
        return [passed(GROUP, "precision/headroom", text, data=_bits(own))]
    names = ", ".join(x.module or "model" for x in near[:5])
    if not is_used:
        text = f"float16 is not used; it would need float32 for {names}"
        return [passed(GROUP, "precision/headroom", text, data=_bits(own))]
    found = []
    for x in near:
        largest = max(x.abs_max, x.peak)
        at = f" in {x.peak_op}" if x.peak > x.abs_max else ""
        text = f"largest value {largest:.3g}{at}: {bits_left(x):.1f} bits to float16's limit"
        action = "keep this layer in float32, or scale its input down"
        report = failed if bits_left(x) < 0 else warned
        found.append(report(GROUP, "precision/headroom", text, action, subject=x.module, weight=5))
    return few(found)


def _bits(layers: Sequence[LayerSeen]) -> dict[str, float]:
    return {x.module: round(bits_left(x), 1) for x in layers if math.isfinite(bits_left(x))}


def judge_underflow(layers: Sequence[LayerSeen], *, is_used: bool) -> list[Finding]:
    """Layers whose output float16 rounds to zero."""
    low = [x for x in leaves_of(layers) if x.underflow_fp16 > MOST_UNDERFLOW]
    if not low:
        return [passed(GROUP, "precision/underflow", "no layer's output vanishes in float16")]
    names = ", ".join(x.module or "model" for x in low[:5])
    if not is_used:
        text = f"float16 is not used; it would round the output of {names} to zero"
        return [passed(GROUP, "precision/underflow", text)]
    return few(
        [
            warned(
                GROUP,
                "precision/underflow",
                f"{x.underflow_fp16:.0%} of its output is below 3e-8, zero in float16",
                "keep this layer in float32, or scale its output up",
                subject=x.module,
                weight=4,
            )
            for x in low
        ]
    )


def recommended_scale(layers: Sequence[LayerSeen]) -> float:
    """A start for the GradScaler: the largest power of two that leaves the gradients some room.

    >>> recommended_scale([LayerSeen("fc", "Linear", grad_abs_max=0.5)])
    16384.0
    """
    largest = max((x.grad_abs_max or 0.0 for x in layers), default=0.0)
    if not 0 < largest < math.inf:
        return DEFAULT_SCALE
    power = math.floor(math.log2(DEFAULT_SCALE / largest)) - GRADIENT_BITS
    return float(min(2.0 ** max(0, power), DEFAULT_SCALE))


def judge_scaler(subject: Subject, full: Seen, scale: float, *, is_used: bool) -> list[Finding]:
    """Is there a GradScaler where one is needed, and where should it start?"""
    lost = [x for x in full.layers if x.grad_underflow_fp16 > MOST_GRAD_UNDERFLOW]
    worst = max(lost, key=lambda x: x.grad_underflow_fp16, default=None)
    text = f"GradScaler(init_scale={scale:g}) fits these gradients"
    if worst is not None:
        text += f"; without one {worst.grad_underflow_fp16:.0%} of {worst.module}'s vanish"
    data = {"init_scale": scale}
    has_scaler = any(s.is_enabled() for s in subject.scalers)
    if is_used and worst is not None and not has_scaler:
        seen = (
            f"{worst.grad_underflow_fp16:.0%} of its gradient is zero in float16, and no GradScaler"
        )
        action = f"use torch.amp.GradScaler(init_scale={scale:g})"
        return [
            warned(
                GROUP, "precision/scaler", seen, action, subject=worst.module, weight=6, data=data
            )
        ]
    if not is_used:
        text = f"float16 is not used; {text}"
    return [passed(GROUP, "precision/scaler", text, data=data)]


def judge_agreement(
    check: str, name: str, full: Seen, half: Seen, noisy: set[str], *, is_used: bool
) -> list[Finding]:
    """How far each layer's output is from float32's."""
    reference = {x.module: x.sample for x in full.layers}
    errors: dict[str, float] = {}
    for layer in leaves_of(half.layers):
        if layer.module not in noisy:
            error = relative_error(reference.get(layer.module), layer.sample)
            if error is not None:
                errors[layer.module] = error
    unused = "" if is_used else f"{name} is not used; "
    if not errors:
        return [passed(GROUP, check, f"{unused}the step is finite, loss {half.loss:.4g}")]
    worst = max(errors, key=lambda m: errors[m])
    keep = [m for m, e in errors.items() if e > KEEP_ERROR]
    text = (
        f"{unused}loss {half.loss:.4g} (float32 {full.loss:.4g}), error at most {errors[worst]:.1%}"
    )
    text += f", most in module {worst}" if worst else " in the model"
    data = {"error": {m: round(e, 5) for m, e in errors.items()}, "keep_in_fp32": keep}
    if is_used and errors[worst] > MOST_ERROR:
        first = keep[0]
        action = "compute this layer in float32: its values cancel or saturate in half precision"
        return [warned(GROUP, check, text, action, subject=first, weight=5, data=data)]
    if keep:
        text += f"; best kept in float32: {', '.join(m or 'model' for m in keep[:5])}"
    return [passed(GROUP, check, text, data=data)]


def relative_error(reference: Tensor | None, value: Tensor | None) -> float | None:
    """Norm of the difference over the norm of the reference; None where they do not compare."""
    if reference is None or value is None or reference.shape != value.shape:
        return None
    size = float(reference.norm())
    if not 0 < size < math.inf:
        return None
    error = float((value - reference).norm()) / size
    return error if math.isfinite(error) else None


def judge_weights(subject: Subject) -> list[Finding]:
    """Weights that are themselves in half precision: small updates are rounded away."""
    half = [
        (n, str(p.dtype).removeprefix("torch."))
        for n, p in subject.parameters()
        if p.requires_grad and str(p.dtype) in ("torch.float16", "torch.bfloat16")
    ]
    if not half:
        return [passed(GROUP, "precision/weights", "all trained weights are float32 or wider")]
    step = {"float16": 2.0**-11, "bfloat16": 2.0**-9}[half[0][1]]
    text = (
        f"{len(half)} trained weights are {half[0][1]}: changes below {step:.1e} of them are lost"
    )
    action = "keep the weights in float32 and use torch.autocast for the forward"
    return [warned(GROUP, "precision/weights", text, action, subject=half[0][0], weight=5)]
