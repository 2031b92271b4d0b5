"""One file for each experiment: its name, its question and how it is run."""

from __future__ import annotations

from . import (
    clipped,
    filled_state,
    finite_lr,
    floored_divisor,
    fresh_optimizer,
    higher_precision,
    larger_eps,
    limited_gradient,
    patched_operator,
    previous_batch,
    smaller_lr,
    unscaled,
    without_outlier,
    without_rows,
)

__all__ = [
    "clipped",
    "filled_state",
    "finite_lr",
    "floored_divisor",
    "fresh_optimizer",
    "higher_precision",
    "larger_eps",
    "limited_gradient",
    "patched_operator",
    "previous_batch",
    "smaller_lr",
    "unscaled",
    "without_outlier",
    "without_rows",
]
