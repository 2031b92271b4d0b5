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
    "loss_scaling": "a loss scale, static or misused (clip without unscale, scale collapsed), corrupts gradients that are ordinary without it",
    "corrupt_checkpoint": "restored weights, buffers or optimizer state already contain NaN or Inf",
    "resume_mismatch": "a resume restores only part of the run (LR, scheduler), and the finite restored state then diverges",
    "hardware_or_nondeterminism": "the same step, replayed, is finite",
}.items():
    register(_name, "cause", _definition)

for _name, _definition in {
    "SF101": "the logarithm of a softmax or sigmoid, which underflows to 0 or saturates at 1",
    "SF102": "the logarithm of a probability that nothing keeps away from 0",
    "SF103": "binary cross-entropy of a sigmoid instead of its logits",
    "SF104": "log(sum(exp(x))), which overflows where logsumexp does not",
    "SF105": "the exponential of a value that is not bounded (a log-variance, a log-ratio, scores)",
    "SF106": "a softmax written by hand, without subtracting the largest entry",
    "SF107": "the logarithm of a value that can be 0 or negative (relu, a count, a layer's output)",
    "SF111": "a division by a count that is 0 where nothing is selected",
    "SF112": "a division by a norm or a standard deviation that can be 0",
    "SF113": "a division by a sum of values that can all be 0",
    "SF114": "a division by 1 - p, which is 0 once the probability has saturated",
    "SF121": "a root whose argument can be 0: its derivative there is infinite",
    "SF122": "a power below 1, or a learned one, of a value that can be 0 or negative",
    "SF123": "acos or asin of a cosine that reaches 1 or rounds to beyond it",
    "SF124": "a branch of where (or a selection) whose derivative is not finite where it is discarded",
    "SF125": "the root of E[x^2] - E[x]^2, which rounds to below 0",
    "SF126": "atanh or logit of a value that saturates at the edge of its domain",
    "SF131": "a softmax over rows in which everything may be masked with -inf",
    "SF132": "a sample deviation over a batch that may have one row",
    "SF133": "a mean or an averaged loss over a selection that may be empty",
    "SF134": "an averaged cross-entropy whose targets may all be ignored",
    "SF135": "a CTC loss without zero_infinity",
    "SF136": "p * log(p) or a divergence where p can be 0: 0 * -inf is NaN",
    "SF137": "label smoothing over classes that are masked out",
    "SF141": "the gradient of eigenvectors or singular vectors, infinite for equal values",
    "SF142": "a result changed in place that its own backward needs (exp, sigmoid, softmax, sqrt)",
    "SF151": "a fill value beyond the range of the half precision it is written into",
    "SF152": "an epsilon or a limit that half precision rounds away",
    "SF161": "a parameter or buffer from torch.empty that nothing writes",
    "SF162": "a parameter or buffer from torch.Tensor(n) that nothing writes",
    "SF163": "memory from torch.empty of which some places may never be written",
    "SF164": "an optimizer or a normalization with an epsilon of 0",
    "SF201": "gradients that are clipped while they are still multiplied by the loss scale",
    "SF202": "a scaled loss with a plain optimizer.step()",
    "SF203": "scaler.step without scaler.update",
    "SF204": "scheduler.step() before optimizer.step()",
    "SF205": "a training loop that never zeroes its gradients",
    "SF206": "bad gradients that are zeroed or repaired and then stepped",
    "SF207": "a loss that is clamped from above",
    "SF208": "a check for NaN that lets Inf through",
    "SF209": "a checkpoint that is saved without a look at the loss or the weights",
    "SF210": "a resume that restores the optimizer and not the scheduler",
    "SF211": "gradient accumulation that does not divide the loss",
    "SF212": "a comparison with NaN by == or !=",
    "SF213": "a best metric that NaN becomes, or that a first NaN blocks",
}.items():
    register(_name, "lint", _definition)

CAUSES: tuple[str, ...] = tuple(c.name for c in all_codes("cause"))
