"""Memory that was never written is read."""

from __future__ import annotations

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, line_fix

_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize")


@rule("uninitialized_memory")
def read_before_written(e: Evidence) -> Finding | None:
    if e.kernel not in _EMPTY:
        return None
    return Finding(
        confidence=0.97,
        sentence=f"Memory allocated with {e.kernel} {here(e)} is read before all of it was written. "
        "It holds whatever was there before: on a lucky day zeros, today NaN or huge numbers.",
        fixes=(
            line_fix(
                e,
                f"allocate with zeros instead of {e.kernel}, or write every element",
                "the places that no later line writes then hold zero instead of old memory",
            ),
        ),
    )


@rule("uninitialized_memory")
def parameter_never_filled(e: Evidence) -> Finding | None:
    m = e.memory
    if m is None or e.event.phase == "checkpoint":
        return None
    is_skipped = m.filling == "covered" and m.is_constant_nan and m.is_all_nan
    if m.filling not in ("unfilled", "partly") and not (m.is_garbage or is_skipped):
        return None
    if m.is_indirect and not (m.is_constant_nan or m.is_garbage):
        return None
    what = {
        "unfilled": "is allocated without values and nothing fills it",
        "partly": "is allocated without values and only partly filled",
        "covered": "is allocated without values, and the line that fills it was not reached",
    }.get(m.filling, "holds numbers that look like old memory")
    place = f" (line {m.line}: {m.source})" if m.line else ""
    confidence = {"unfilled": 0.93, "partly": 0.88, "covered": 0.86}.get(m.filling, 0.6)
    if m.filling == "partly" and not m.is_constant_nan and not m.is_garbage:
        confidence = 0.6
    if m.is_indirect:
        confidence = min(confidence, 0.82)
    return Finding(
        confidence=confidence,
        sentence=f"{m.name} {what}{place}. It was bad before the first step.",
        fixes=(
            Fix(
                title=f"initialize {m.name} with a function of torch.nn.init, or with zeros where they "
                "are not divided by",
                why="torch.empty and torch.Tensor(n) hand out memory as it is",
                file=m.file,
                line=m.line,
                before=m.source,
                after=_filled(m.source),
            ),
        ),
        wants=("filled_state",),
    )


def _filled(source: str | None) -> str | None:
    if source is None:
        return None
    for empty, zeros in (
        ("empty_like", "zeros_like"),
        ("new_empty", "new_zeros"),
        ("empty", "zeros"),
    ):
        if f"{empty}(" in source:
            return source.replace(f"{empty}(", f"{zeros}(")
    return None
