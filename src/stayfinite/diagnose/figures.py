"""Collects the numbers in the rules' sentences, so that a reader can check them."""

from __future__ import annotations

import math

from .evidence import Evidence

__all__ = ["figures"]

_TINIEST = 6e-8


def figures(e: Evidence) -> dict[str, float]:
    """The measurements besides the event, the links and the history."""
    found: dict[str, float | None] = {
        "weights.largest": e.weights.largest,
        "weights.largest_at_start": e.weights.first,
        "weights.growth": e.weights.growth,
        "steps_since_snapshot": e.weights.steps,
        "finite_replays": e.num_finite_replays,
        "largest_input": e.largest_input,
        "loss_factor": e.scale.factor,
        "scaler_scale": e.scale.scaler,
    }
    if e.birth is not None:
        found |= {"dtype_limit": e.limit, "log_of_dtype_limit": math.log(e.limit)}
        if e.is_half_birth:
            found["smallest_of_float16"] = _TINIEST
        number = e.number("other", "eps", "exponent")
        found |= {"argument": number, "zeros_divided_by": e.fact("weight_sum")}
    if e.quotient is not None:
        found |= {"divisor.line": e.quotient.line, "divisor.smallest": e.quotient.smallest}
    found |= _of_data(e) | _of_resume(e) | _of_searches(e)
    peaks = [p for p in e.gradient_peaks if 0 < p < math.inf]
    if peaks:
        found |= {"gradient.first": peaks[0], "gradient.largest": max(peaks)}
        found["gradient.steps"] = len(peaks)
    eps = e.optimizer.get("eps")
    if eps is not None:
        found["optimizer.eps"] = float(eps)
    return {k: float(v) for k, v in found.items() if v is not None}


def _of_data(e: Evidence) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for part in e.batch:
        found[f"{part.name}.largest"] = part.stats.abs_max
        found[f"{part.name}.usual"] = part.usual
        found[f"{part.name}.usual_here"] = part.usual_here
    if e.outlier is not None:
        o = e.outlier
        found |= {"outlier.step": o.step, "outlier.largest": o.peak, "outlier.usual": o.usual}
        found |= {"outlier.row": o.row, "outlier.index": o.index}
    if e.data is not None:
        found["data.line"] = e.data.line
    if e.memory is not None:
        found["memory.line"] = e.memory.line
    return found


def _of_resume(e: Evidence) -> dict[str, float | None]:
    r = e.resume
    named = {
        "configured": r.configured_lr, "saved": r.saved_lr, "first": r.first_lr, "in_file": r.file_lr,
    }  # fmt: skip
    return {f"rate.{name}": max(rates) for name, rates in named.items() if rates}


def _of_searches(e: Evidence) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, searched in (("rate", e.rate), ("clip", e.clip)):
        if searched is not None:
            found[f"{name}.passed"] = searched.passed
            found[f"{name}.failed"] = searched.failed
            found[f"{name}.steps_passed"] = searched.num_steps
            found[f"{name}.batches"] = searched.num_batches
    return found
