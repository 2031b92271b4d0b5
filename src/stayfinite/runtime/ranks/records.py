"""What all ranks of a training know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..window import Failure

__all__ = ["RankFailure", "Settled", "is_answered_alike", "most_telling_first"]

_ORDER = (
    "learning_rate", "loss", "parameter", "buffer", "optimizer_state", "average", "gradient", "spike",
    "scaler_skip",
)  # fmt: skip
_SEEN = {"loss", "gradient"}
"""Symptoms that are answered in the same way."""


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


def most_telling_first(told: Iterable[tuple[Any, ...] | None]) -> list[RankFailure]:
    """What the ranks have seen, without those that have seen nothing."""
    found = [RankFailure(*f) for f in told if f is not None]
    return sorted(found, key=lambda f: (_ORDER.index(f.symptom), f.rank))


def is_answered_alike(one: str, other: str) -> bool:
    """Whether a step with either symptom is left out in the same way."""
    return one == other or {one, other} == _SEEN
