"""Where a located failure is to be changed, and what failed there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...diagnose.evidence import Evidence
from ...locate.frames import is_user_file
from ...records import Link, TensorStats
from ...remedies import Source, Symptom
from ..replays.changed_source import ChangedSource, text_of_file

__all__ = ["Place", "for_cause", "is_same", "is_scaled_loss", "place_of", "symptom_of"]

_SCALE = 8.0
_INVERTING = ("pow", "rsqrt", "reciprocal")


@dataclass(frozen=True)
class Place:
    """A line to change, and what failed there."""

    file: str
    line: int
    symptom: Symptom


def is_scaled_loss(e: Evidence) -> bool:
    """A scalar times another, or the last factor of a loss: a loss and its scale."""
    is_product = e.kernel == "mul" and all(s.num_elements == 1 for s in e.tensors)
    is_before = not e.is_backward and e.kernel != "mul"  # a value of the forward is not scaled
    return is_product or (not is_before and (e.scale.factor or 1.0) >= _SCALE)


def for_cause(symptom: Symptom, cause: str | None) -> Symptom:
    """Patterns that depend on the cause and not only on the operator."""
    # The weights of all targets may be 0, which is an average over nothing as well.
    is_mean = cause == "empty_reduction" or symptom.operator.startswith("nll_loss")
    return replace(
        symptom,
        is_empty=symptom.is_empty or is_mean,
        is_exploding=cause == "exploding_gradient",
        is_infeasible=cause == "infeasible_target",
        is_discarded=cause == "masked_branch_leak",
    )


def is_same(place: Place, tried: Place, change: ChangedSource) -> bool:
    """The same operator of the same line, so the change did not help."""
    lines = (tried.line, change.line_after(tried.line))
    return place.line in lines and place.symptom.operator == tried.symptom.operator


def place_of(e: Evidence) -> Place | None:
    location = e.location
    if location.file is None or location.line is None or not is_user_file(location.file):
        return None
    mask = next((c for c in location.chain if c.role == "sentinel" and c.file and c.line), None)
    symptom = symptom_of(e)
    if symptom.is_masked and mask is not None and _is_apart(mask, location.line, location.file):
        assert mask.file is not None and mask.line is not None
        if is_user_file(mask.file):
            return Place(mask.file, mask.line, symptom)
    return Place(location.file, location.line, symptom)


def _is_apart(mask: Link, line: int, file: str) -> bool:
    """Whether the mask was written in another function than the one that fails."""
    if mask.file != file or mask.line is None:
        return True
    text = text_of_file(file)
    source = Source(text) if text else None
    return source is not None and source.function_at(mask.line) is not source.function_at(line)


def symptom_of(e: Evidence) -> Symptom:
    operator = e.forward_name if e.is_backward else e.kernel
    operator = "pow" if operator.startswith("pow") else operator
    divisor = e.at_bad("tensor2", "other")
    whole = e.operand("tensor2", "other")
    stats = whole.stats if whole is not None else None
    counted = e.operand("self") if operator in _INVERTING else whole
    is_private = operator in ("_softmax", "_log_softmax", "_ctc_loss")
    return Symptom(
        operator=operator if is_private else operator.lstrip("_"),
        dtype=e.dtype,
        is_masked=any(c.facts.get("rows_all_neginf", 0.0) > 0 for c in e.location.chain),
        is_empty=e.birth is not None and e.birth.facts.get("num_reduced", 2.0) <= 1.0,
        is_count=counted is not None and _is_count(counted.stats),
        can_be_negative=stats is not None and stats.min is not None and stats.min < 0,
        is_plain_number=divisor is None and e.number("other") == 0,
        is_distribution="distributions" in (e.location.library_file or ""),
    )


def _is_count(stats: TensorStats | None) -> bool:
    """Whether these are integers; a maximum of 1 may be that of probabilities."""
    if stats is None or stats.min is None or stats.max is None:
        return False
    if not stats.dtype.startswith(("float", "bfloat")):
        return True
    is_whole = float(stats.max).is_integer() and float(stats.min).is_integer()
    return is_whole and stats.min >= 0 and stats.max > 1
