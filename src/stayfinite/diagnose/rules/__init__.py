"""One file per cause. Importing a file registers its rules."""

from __future__ import annotations

import importlib

__all__ = ["load"]

_MODULES = (
    "hardware_or_nondeterminism",
    "bad_schedule",
    "corrupt_checkpoint",
    "uninitialized_memory",
    "bad_initialization",
    "bad_input_data",
    "bad_preprocessing",
    "optimizer_denominator",
    "degenerate_linalg",
    "fully_masked_row",
    "infeasible_target",
    "empty_reduction",
    "domain_error",
    "log_of_zero",
    "zero_denominator",
    "masked_branch_leak",
    "singular_gradient",
    "exp_overflow",
    "low_precision_overflow",
    "low_precision_underflow",
    "loss_scaling",
    "resume_mismatch",
    "lr_divergence",
    "exploding_gradient",
)


def load() -> None:
    """Register the built-in rules."""
    for name in _MODULES:
        importlib.import_module(f"{__name__}.{name}")
