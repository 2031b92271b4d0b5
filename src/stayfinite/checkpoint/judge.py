"""Judges a tensor's statistics by its role (weights, buffers, optimizer state, …)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ..codes import all_codes
from ..records import TensorStats
from .records import TensorFinding, TensorReport
from .roles import ROLE_TITLES, is_mask_like

__all__ = ["SEVERITY", "finding", "is_plainly_fine", "judge_number", "judge_tensor", "needs_range"]

SEVERITY: dict[str, str] = {code.name: code.detail("Verdict") for code in all_codes("scan")}
"""The verdict of a finding with this code; `codes/scan.py` says what the codes mean."""
_ABSURD = {"weights": 1e6, "ema": 1e6, "optimizer": 1e15, "batchnorm": 1e12}
"""Ten thousand times the usual maximum of trained weights; squares of gradients may be larger."""
_FLOOD_SHARE = 0.5
_MIN_MATRIX = 16
_BORN_EQUAL = re.compile(
    r"lora_b|lora_up|zero|adapter|gate|alpha|gamma|beta|bias|pos_?emb|position|cls_token|token|scale|norm|"
    r"relative_position|running|mask|\bpe\b|_buffers|anchor|stride|threshold|logit|prior|window|kernel"
)
"""Names of weights that are often zero or constant at the start of a training."""
_REMEDIES = {
    "weights": "do not resume from it: take a checkpoint from before",
    "optimizer": "if the weights are sound, load them and start the optimizer anew",
    "ema": "if the weights are sound, start the average anew from them",
    "batchnorm": "if the weights are sound, reset the statistics and run over training data once",
    "scaler": "start the loss scaler anew",
    "data": "clean or drop the samples that hold these values",
}
_SETTINGS = re.compile(
    r"(^|\.)(lr|initial_lr|max_lr|min_lr|base_lrs|_last_lr|eps|weight_decay|betas|momentum)(\.|$)"
)
_SCALE = re.compile(r"(^|\.)(scale|_scale|cur_scale|loss_scale)$")


def finding(code: str, message: str, **details: object) -> TensorFinding:
    """A finding with the severity of its code."""
    return TensorFinding(code=code, message=message, severity=SEVERITY[code], **details)  # type: ignore[arg-type]


_LATER = frozenset({"running_var", "exp_avg_sq", "max_exp_avg_sq", "square_avg"})
_ORDINARY = 1e4


def is_plainly_fine(name: str, stats: TensorStats) -> bool:
    """Whether `judge_tensor` would find nothing; a hundred times as fast, and true for most tensors."""
    low, high = stats.min, stats.max
    if low is None or high is None or stats.num_nonfinite:
        return False
    if not -_ORDINARY < low <= high < _ORDINARY or (low == high and len(stats.shape) > 1):
        return False
    return low > 0 or not needs_range(name)


def needs_range(name: str) -> bool:
    """Whether a rule needs the smallest value of a tensor with ordinary values."""
    return name.rpartition(".")[2] in _LATER


def judge_tensor(tensor: TensorReport, is_flooded: bool) -> Iterator[TensorFinding]:
    """All findings for one tensor."""
    stats, role = tensor.stats, tensor.role
    about = {"tensor": tensor.name, "role": role, "stats": stats}
    if not stats.is_finite and role == "metric":
        yield finding(
            "nonfinite_metric", f"{tensor.name} is not finite", tensor=tensor.name, role=role
        )
        return
    if not stats.is_finite:
        if not _is_by_design(tensor):
            yield finding(
                "nonfinite_tensor", _describe_bad(tensor), action=_REMEDIES.get(role), **about
            )
        return
    if stats.abs_max is None or not stats.dtype.startswith(("float", "bfloat", "complex")):
        return
    yield from _judge_range(tensor, about)
    if role in ("weights", "ema") and len(stats.shape) > 1 and stats.num_elements >= _MIN_MATRIX:
        yield from _judge_matrix(tensor, is_flooded, about)
    last = tensor.name.rpartition(".")[2]
    if last == "running_var" and stats.min is not None and stats.min <= 0:
        what = f"negative ({stats.min:.3g})" if stats.min < 0 else "exactly zero"
        yield finding(
            "dead_variance",
            f"a channel's running variance is {what}",
            action="that channel has seen constant input; reset the statistics or drop the channel",
            **about,
        )
    is_square = last in ("exp_avg_sq", "max_exp_avg_sq", "square_avg") and role == "optimizer"
    if is_square and stats.min is not None and stats.min < 0:
        yield finding(
            "negative_second_moment",
            f"a mean of squares is negative ({stats.min:.3g}): the next step takes its root",
            action="resume without the optimizer state, or from the checkpoint before",
            **about,
        )


def _judge_range(tensor: TensorReport, about: dict[str, object]) -> Iterator[TensorFinding]:
    stats, role = tensor.stats, tensor.role
    top = stats.abs_max or 0.0
    if role not in _ABSURD or is_mask_like(tensor.name) or stats.dtype.startswith("float8"):
        return
    if stats.min == stats.max or _is_two_valued(tensor):
        return
    if stats.headroom_bits is not None and stats.headroom_bits < 1 and stats.dtype != "float64":
        yield finding(
            "near_limit",
            f"the largest magnitude, {top:.4g}, is within one doubling of {stats.dtype}'s limit",
            action="the next update may overflow: lower the learning rate or keep it in fp32",
            **about,
        )
    elif top > _ABSURD[role]:
        yield finding(
            "absurd_magnitude",
            f"the largest magnitude is {top:.4g}; {ROLE_TITLES[role]} stay below {_ABSURD[role]:g}",
            action="the run was diverging when this was saved: go back to an earlier checkpoint",
            **about,
        )


def _is_two_valued(tensor: TensorReport) -> bool:
    """A mask written with the dtype's lowest number: zero and one huge negative value."""
    stats = tensor.stats
    return stats.max == 0.0 and stats.min is not None and stats.min <= -1e4


def _judge_matrix(
    tensor: TensorReport, is_flooded: bool, about: dict[str, object]
) -> Iterator[TensorFinding]:
    stats = tensor.stats
    is_equal = stats.min == stats.max
    if is_equal and not _BORN_EQUAL.search(tensor.name.lower()):
        code = "all_zero" if stats.abs_max == 0 else "constant"
        value = "zero" if code == "all_zero" else f"{stats.min:.4g}"
        yield finding(
            code,
            f"all {stats.num_elements:,} values are {value}",
            action="check that this layer was initialized, and that it was written completely",
            **about,
        )
    share = stats.num_subnormal / max(stats.num_elements, 1)
    if is_flooded and share >= _FLOOD_SHARE:
        yield finding(
            "subnormal_flood",
            f"{share:.0%} of the values are subnormal in {stats.dtype}: little precision is left",
            action="the weight has decayed to nothing, or was cast from a wider dtype; check both",
            **about,
        )


def _is_by_design(tensor: TensorReport) -> bool:
    """Whether Inf is intended: masks, min/max observers, best scores. NaN never is."""
    stats = tensor.stats
    if stats.num_nan:
        return False
    if tensor.role in ("callback", "buffer", "scheduler") or is_mask_like(tensor.name):
        return True
    is_mask = stats.num_posinf == 0 and stats.max == 0.0 and stats.min == 0.0
    return is_mask and len(stats.shape) > 1


def _describe_bad(tensor: TensorReport) -> str:
    s = tensor.stats
    counts = [
        f"{n:,} {label}"
        for n, label in ((s.num_nan, "NaN"), (s.num_posinf, "+Inf"), (s.num_neginf, "-Inf"))
        if n
    ]
    where = f", first at {list(s.first_bad)}" if s.first_bad else ""
    rest = (
        f"; the rest lies in {s.min:.4g} … {s.max:.4g}"
        if s.min is not None
        else "; no finite value"
    )
    return f"{', '.join(counts)} of {s.num_elements:,} values{where}{rest}"


def judge_number(name: str, role: str, value: float) -> TensorFinding | None:
    """A finding for a plain number in the file."""
    is_scale = role == "scaler" and bool(_SCALE.search(name))
    if math.isfinite(value):
        if is_scale and 0 <= value < 1:
            return finding(
                "scaler_collapsed",
                f"the loss scale is {value:.4g}: most steps before this were skipped",
                tensor=name,
                role=role,
                action="go back to a checkpoint from before the scale fell, or reset the scaler",
            )
        return None
    if (_SETTINGS.search(name) and role in ("optimizer", "scheduler", "weights")) or is_scale:
        return finding(
            "nonfinite_setting",
            f"{name} is {value}: training would resume with it",
            tensor=name,
            role=role,
            action="set it anew after loading, or go back to an earlier checkpoint",
        )
    if (role in ("scheduler", "callback") and math.isinf(value)) or is_mask_like(name):
        return None
    return finding("nonfinite_metric", f"{name} is {value}", tensor=name, role=role)
