"""Compares the first loss with that of guessing, and finds loss functions on the wrong input."""

from __future__ import annotations

import math

from ..probes import LossCall, Seen
from ..records import Finding, failed, passed, warned

__all__ = ["expected_loss", "judge_loss"]

GROUP = "forward"

MARGIN = 3.0
"""Logits with a std of s cost about s * s / 2 more than a guess: 3 is a std of 2.4."""
_PAIRWISE = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


def expected_loss(call: LossCall) -> float | None:
    """What a guess would give: log C for C classes, log 2 for yes or no.

    As many classes as samples: every sample is to find its own partner among all, with a temperature that makes
    it sure from the start.

    >>> round(expected_loss(LossCall(name="cross_entropy", num_classes=10)), 3)
    2.303
    """
    if len(call.input_shape) == 2 and call.input_shape[0] == call.num_classes:
        return None
    if call.name in ("cross_entropy", "nll_loss") and call.num_classes and call.num_classes > 1:
        return math.log(call.num_classes)
    if call.name.startswith("binary_cross_entropy"):
        return math.log(2)
    return None


def judge_loss(seen: Seen) -> list[Finding]:
    """Every loss function that the step called."""
    found: list[Finding] = []
    for call in _distinct(seen.loss_calls):
        problem = _wrong_input(call) or _broadcast(call)
        if problem is not None:
            found.append(problem)
            continue
        start = _at_start(call)
        if start is not None:
            found.append(start)
    if not found and seen.loss is not None:
        found.append(passed(GROUP, "loss/at-start", f"{seen.loss:.4g}; no expected value known"))
    return found


def _distinct(calls: list[LossCall]) -> list[LossCall]:
    return list({(c.name, c.at): c for c in reversed(calls)}.values())[::-1]


def _wrong_input(call: LossCall) -> Finding | None:
    """Probabilities where logits are wanted, and the other way round."""
    more = {"subject": call.at, "weight": 7}
    squashed = call.input_op.startswith(("Softmax", "SafeSoftmax"))
    if call.name == "cross_entropy" and (squashed or call.is_distribution):
        seen = f"cross_entropy got probabilities ({_range(call)}), it takes logits"
        action = "remove the softmax before the loss: cross_entropy applies its own"
        return warned(GROUP, "loss/softmax-twice", seen, action, **more)
    if call.name == "binary_cross_entropy_with_logits" and (
        squashed or call.input_op.startswith("Sigmoid")
    ):
        seen = f"binary_cross_entropy_with_logits got probabilities ({_range(call)})"
        action = "remove the sigmoid before the loss: it applies its own"
        return warned(GROUP, "loss/sigmoid-twice", seen, action, **more)
    if call.name in ("nll_loss", "kl_div") and (call.input_max or 0.0) > 1e-4:
        seen = f"{call.name} takes log-probabilities (at most 0), got {_range(call)}"
        action = "apply log_softmax first" + (
            ", or use cross_entropy" if call.name == "nll_loss" else ""
        )
        return failed(GROUP, "loss/not-log-probabilities", seen, action, **more)
    return None


def _range(call: LossCall) -> str:
    return f"{call.input_min:.3g} to {call.input_max:.3g}"


def _broadcast(call: LossCall) -> Finding | None:
    a, b = call.input_shape, call.target_shape
    if call.name not in _PAIRWISE or a == b or not a or not b:
        return None
    wide = max(len(a), len(b))
    pairs = zip((1,) * (wide - len(a)) + a, (1,) * (wide - len(b)) + b)
    size = math.prod(max(x, y) for x, y in pairs)
    if size <= max(math.prod(a), math.prod(b)):
        return None
    seen = f"{call.name} of shapes {a} and {b} compares every row with every row ({size} pairs)"
    action = "give both the same shape: squeeze(-1) the prediction or unsqueeze(-1) the target"
    return failed(GROUP, "loss/broadcast", seen, action, subject=call.at, weight=8)


def _at_start(call: LossCall) -> Finding | None:
    expected = expected_loss(call)
    if expected is None or call.value is None:
        return None
    guess = f"a guess between {call.num_classes} classes" if call.num_classes else "a coin"
    seen = f"{call.name} {call.value:.3g}; {guess} gives {expected:.3g}"
    data = {"value": call.value, "expected": expected}
    if call.value > expected + MARGIN and not call.has_weights:
        action = "make the last layer's weights smaller: it starts out sure and wrong"
        why = "the first steps only unlearn it; loss at init should be -log(1/C)"
        return warned(
            GROUP, "loss/at-start", seen, action, subject=call.at, why=why, data=data, weight=4
        )
    if call.value < 0.1 * expected:
        seen += " (better than a guess: pretrained, or the input gives the label away)"
    return passed(GROUP, "loss/at-start", seen, subject=call.at, data=data)
