"""The memory of the trace: operators with a bad result, and earlier writers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..numerics.health import Badness
from ..records import Operand
from .frames import Place

__all__ = [
    "COLLECTIVES",
    "DISCARDS",
    "BadInput",
    "Note",
    "SourceRef",
    "descendants",
    "is_no_mask",
]

DISCARDS = {
    "aten.where", "aten.masked_fill", "aten.masked_fill_", "aten.index", "aten.masked_select",
    "aten.nan_to_num", "aten.gather", "aten.index_select", "aten.masked_scatter", "aten.isinf",
    "aten.isfinite", "aten.index_put", "aten.index_put_", "aten.copy_",
}  # fmt: skip
"""Operators that are meant to keep a bad value out of their result."""

COLLECTIVES = frozenset(
    ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor")
)
"""Namespaces of operators that exchange values with other processes; a result may not be there yet when they return."""


@dataclass(frozen=True)
class SourceRef:
    """A tensor that existed before the step: a part of the batch, a parameter, a buffer."""

    kind: str
    """batch | parameter | buffer | optimizer_state | gradient | variable (of an earlier iteration)"""
    name: str
    tensor: Tensor = field(compare=False, repr=False)


@dataclass
class BadInput:
    name: str
    bad: Badness
    producers: list[int]
    source: SourceRef | None


def is_no_mask(bad: Badness) -> bool:
    """Whether this is more than the -inf of a mask or of an initial value."""
    return bad.has_nan or bad.has_posinf


@dataclass
class Note:
    """One operator call with a non-finite result."""

    index: int
    op: str
    kernel: str
    direction: str
    bad: Badness
    bad_inputs: list[BadInput]
    has_written_inf: bool
    is_uninitialized: bool = False
    has_fresh_nan: bool = False
    """Whether an elementwise result is NaN where no input is NaN."""
    has_fresh_inf: bool = False
    """Whether an elementwise result is Inf where all inputs are finite."""
    place: Place = field(default_factory=Place)
    module: str | None = None
    module_type: str | None = None
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Operand, ...] = ()
    facts: dict[str, float] = field(default_factory=dict)
    absorbed_by: set[str] = field(default_factory=set)
    """Forward operators that received this bad value and returned a finite one."""


def descendants(notes: Sequence[Note], first: Iterable[Note]) -> list[Note]:
    """These notes, and all forward notes that depend on them."""
    found = {n.index: n for n in first}
    for note in notes:
        if note.direction == "forward" and any(
            number in found for b in note.bad_inputs for number in b.producers
        ):
            found.setdefault(note.index, note)
    return list(found.values())
