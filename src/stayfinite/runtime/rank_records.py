"""What the ranks of a training know alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .window import Failure

__all__ = ["Agreed", "RankFailure", "Settled"]


class Agreed(NamedTuple):
    """What one all-reduce told every rank alike."""

    is_bad: bool
    is_due: bool


class Settled(NamedTuple):
    """What all ranks know alike of something that they have done together."""

    is_fine: bool
    """It has gone well on every rank."""
    has_moved: bool
    """Some rank has left the state of the failed step for it."""


@dataclass(frozen=True)
class RankFailure(Failure):
    """A symptom that all ranks act on, and the rank that has it."""

    rank: int = 0
