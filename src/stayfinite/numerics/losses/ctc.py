"""CTC with targets that no alignment can produce."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UsageError
from ..eps import choice, gate, widen
from ..masked import REDUCTIONS, masked_mean, masked_sum

__all__ = ["CtcOutput", "ctc_loss"]


class CtcOutput(NamedTuple):
    """What `ctc_loss` returns."""

    loss: Tensor
    """Over the feasible samples; 0 with gradient zero if there is none."""
    is_infeasible: Tensor
    """For each sample, whether no alignment can produce its target."""


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    *,
    blank: int = 0,
    reduction: str = "mean",
) -> CtcOutput:
    """`F.ctc_loss` that leaves infeasible targets out and says which: log_probs (T, N, C).

    Prevents: the infinite loss of a target that is too long for its input (each repeated label
    needs a blank in between), and its NaN gradient. `zero_infinity=True` hides such samples, and
    still counts them in the mean; here they are left out of it and reported. Classes at -inf are
    allowed; a target that needs one (or a log-probability below -1e6) is infeasible. The mean is
    over the feasible samples, each divided by its target's length, as `F.ctc_loss` has it. Targets
    are padded, (N, S).

    >>> log_probs = torch.randn(4, 2, 3).log_softmax(-1)
    >>> targets = torch.tensor([[1, 1, 1], [1, 2, 1]])   # 1 1 1 needs five frames
    >>> out = ctc_loss(log_probs, targets, torch.tensor([4, 4]), torch.tensor([3, 3]))
    >>> out.is_infeasible
    tensor([ True, False])
    """
    choice("reduction", reduction, REDUCTIONS)
    if targets.ndim != 2 or log_probs.ndim != 3:
        raise UsageError(
            "ctc_loss takes log_probs (T, N, C) and padded targets (N, S), got shapes "
            f"{tuple(log_probs.shape)} and {tuple(targets.shape)}"
        )
    # What stands for log 0. The kernel's gradient is exp of a difference of sums over the frames:
    # the rounding error of such a sum must stay far below the limit of exp.
    log_zero = -min(1e6, 5e8 / max(log_probs.shape[0], 1))
    x = widen(log_probs, "log_probs").clamp_min(log_zero)
    is_short = target_lengths + _num_repeats(targets, target_lengths) > input_lengths
    raw = F.ctc_loss(x, targets, input_lengths, target_lengths, blank, "none", zero_infinity=True)
    is_infeasible = is_short | (raw.detach() >= -0.9 * log_zero)
    loss = gate(raw, (~is_infeasible).to(raw.dtype))
    if reduction == "mean":
        lengths = target_lengths.clamp_min(1).to(loss.dtype)
        return CtcOutput(masked_mean(loss / lengths, ~is_infeasible), is_infeasible)
    return CtcOutput(masked_sum(loss) if reduction == "sum" else loss, is_infeasible)


def _num_repeats(targets: Tensor, target_lengths: Tensor) -> Tensor:
    """How many labels of each target equal the one before: each needs a frame more."""
    index = torch.arange(1, targets.shape[1], device=targets.device)
    is_inside = index < target_lengths.to(targets.device)[:, None]
    is_repeat = (targets[:, 1:] == targets[:, :-1]) & is_inside
    return is_repeat.sum(1).to(target_lengths.device)
