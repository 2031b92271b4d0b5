"""One registry of codes: causes of an incident, findings of a scan.

Every code has a one-line definition here and a section in `docs/CODES.md`; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import UsageError

__all__ = ["CAUSES", "Code", "all_codes", "lookup", "register"]

Kind = Literal["cause", "scan", "lint", "check"]


@dataclass(frozen=True)
class Code:
    """A code, what it means, and which part of stayfinite uses it."""

    name: str
    kind: Kind
    definition: str


_REGISTRY: dict[str, Code] = {}


def register(name: str, kind: Kind, definition: str) -> Code:
    """Add a code; a name that is taken, or a definition that is empty, is rejected here."""
    if not name or name != name.strip() or " " in name:
        raise UsageError(f"a code is one word without spaces, got {name!r}")
    if not definition.strip():
        raise UsageError(f"code {name!r} needs a definition")
    if name in _REGISTRY:
        raise UsageError(f"code {name!r} is already registered: {_REGISTRY[name].definition}")
    code = _REGISTRY[name] = Code(name, kind, definition)
    return code


def lookup(name: str) -> Code:
    """The code of that name; an unknown one lists all that there are.

    >>> lookup("log_of_zero").kind
    'cause'
    """
    try:
        return _REGISTRY[name]
    except KeyError:
        raise UsageError(f"unknown code {name!r}; known: {', '.join(sorted(_REGISTRY))}") from None


def all_codes(kind: Kind | None = None) -> list[Code]:
    """All codes, or those of one kind, in the order of registration."""
    return [c for c in _REGISTRY.values() if kind is None or c.kind == kind]


for _name, _definition in {
    "low_precision_overflow": "a finite result is beyond the range of the fp16/bf16 arithmetic it is computed in",
    "low_precision_underflow": "an epsilon or a small quantity rounds to zero in half precision and is then divided by or logged",
    "log_of_zero": "the logarithm of a probability or density that has saturated or underflowed to exactly zero",
    "domain_error": "a function outside its domain (log or sqrt of a negative number)",
    "zero_denominator": "a division by exactly zero (degree, norm, count, weight sum)",
    "empty_reduction": "a mean, variance or averaged loss over no element, or a sample variance over one",
    "singular_gradient": "the forward value is finite, the derivative there is infinite or undefined (sqrt'(0), pow, acos'(1))",
    "masked_branch_leak": "a non-finite value or derivative that a mask or `where` discards comes back in the backward as 0 * inf",
    "fully_masked_row": "softmax or logsumexp over a row whose entries are all -inf",
    "exp_overflow": "an unbounded exponential (log-variance, temperature, Sinkhorn, softmax without max subtraction) overflows fp32",
    "infeasible_target": "the target has probability zero by construction (CTC target too long, smoothing mass on masked classes)",
    "degenerate_linalg": "the backward of a matrix decomposition at repeated or zero eigen/singular values",
    "bad_input_data": "the stored sample is itself NaN, Inf or absurdly large",
    "bad_preprocessing": "the sample was finite; the data pipeline made it non-finite",
    "uninitialized_memory": "memory allocated but never written is used as a parameter, activation or gradient",
    "bad_initialization": "a parameter or buffer is non-finite from construction",
    "lr_divergence": "the learning rate, or the schedule that sets it, makes the updates grow until something overflows",
    "exploding_gradient": "the product of Jacobians over depth or time overflows although weights, activations and LR are ordinary",
    "optimizer_denominator": "the optimizer's own denominator is zero (epsilon zero or rounded to zero) for finite gradients",
    "bad_schedule": "the scheduler hands the optimizer a learning rate that is itself NaN or Inf",
    "loss_scaling": "a loss scale, static or misused (clip without unscale, scale collapsed), spoils gradients that are ordinary without it",
    "corrupt_checkpoint": "restored weights, buffers or optimizer state already contain NaN or Inf",
    "resume_mismatch": "a resume restores only part of the run (LR, scheduler), and the finite restored state then diverges",
    "hardware_or_nondeterminism": "the same step, replayed, is finite",
}.items():
    register(_name, "cause", _definition)

CAUSES: tuple[str, ...] = tuple(c.name for c in all_codes("cause"))
