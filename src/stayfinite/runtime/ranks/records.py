"""The records that are the same on all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..window import Failure

__all__ = ["RankFailure", "Settled", "is_answered_alike", "most_informative_first"]

_ORDER = (
    "learning_rate", "loss", "parameter", "buffer", "optimizer_state", "average", "gradient", "spike",
    "scaler_skip",
)  # fmt: skip
_SEEN = {"loss", "gradient"}
"""Groups of symptoms with the same response."""


class Settled(NamedTuple):
    """The common result of something that all ranks did together."""

    is_fine: bool
    """Whether it has succeeded on every rank."""
    has_moved: bool
    """Whether any rank has restored another state than that of the failed step."""


@dataclass(frozen=True)
class RankFailure(Failure):
    """A symptom that all ranks act on, and its rank."""

    rank: int = 0


def most_informative_first(given: Iterable[tuple[Any, ...] | None]) -> list[RankFailure]:
    """Merge the failures of the ranks, without those that saw none."""
    found = [RankFailure(*f) for f in given if f is not None]
    return sorted(found, key=lambda f: (_ORDER.index(f.symptom), f.rank))


def is_answered_alike(one: str, other: str) -> bool:
    """Whether a step with either symptom is skipped in the same way."""
    return one == other or {one, other} == _SEEN
