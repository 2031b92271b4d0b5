"""Advice in words that says again what a diff has proved."""

from __future__ import annotations

from ..records import Fix

__all__ = ["is_said_by"]

_DIVERGING = ("lr_divergence", "exploding_gradient")
_SAME = (
    (("log_space", "logsumexp", "log_of_share", "softmax", "with_logits", "log_cosh"),
     ("log space", "logsumexp", "log_softmax", "with_logits")),
    (("floor_", "norm", "bound_arc", "inside_unit", "above_minus", "log1p", "logit", "hypot", "nonzero",
      "eps_for", "atan2"),
     ("safe_", "clamp", "floor", "eps", "inside its domain", "away from zero")),
    (("bound_exp", "shift_exp"), ("safe_exp", "bound what goes in")),
    (("finite_mask", "open_"), ("mask", "finfo")),
    (("float32",), ("float32", "float()")),
    (("mean_or", "loss_or", "nan_to_zero", "spread_of_one"), ("masked_mean", "safe_std", "max(", "empty", "skip")),
    (("zero_infinity",), ("zero_infinity",)),
    (("zeros", "zeroed"), ("zeros", "initialize")),
    (("drop_rows",), ("drop", "clean")),
)  # fmt: skip
"""How remedies begin, and the words by which advice means the same."""


def is_said_by(proved: Fix, advice: Fix, cause: str | None) -> bool:
    """Whether a diff that was proved says it already.

    What bounds the updates of a training that diverges stays beside it; where something else is the
    cause, a smaller rate only hides it. A line that has to be repaired as well is in the diff.

    >>> mask = Fix(title="", why="", status="proved", remedy="finite_mask")
    >>> is_said_by(mask, Fix(title="or mask with torch.finfo(scores.dtype).min", why=""), None)
    True
    >>> is_said_by(mask, Fix(title="drop empty sequences when the batch is made", why=""), None)
    False
    """
    if advice.status == "refuted":
        return False
    if advice.experiment in ("smaller_lr", "clipped"):
        return cause not in _DIVERGING
    if advice.title.startswith("and repair "):
        return "+" in (proved.remedy or "")
    names = (proved.remedy or "").split("+")
    words = [w for heads, means in _SAME if any(n.startswith(heads) for n in names) for w in means]
    if not words:
        return advice.experiment is not None  # a setting: there is one advice for it
    return any(w in advice.title for w in words)
