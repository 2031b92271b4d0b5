"""Decides in which steps the ranks have to synchronize, and in which each can judge alone.

After a gradient exchange every rank has the same gradients (DistributedDataParallel, or a loop that averages them), or the
same total norm (`clip_grad_norm_` over shards). Then every rank reaches the same verdict without asking. Whether that is so
is measured: at a synchronization the ranks compare a digest of what they check. While the digests are equal, the interval
to the next synchronization grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..window_log import WindowLog

__all__ = ["DUE", "NOT_DUE", "URGENT", "Agreed", "DeepCheckVote", "SyncSchedule", "digest_of"]

DUE, NOT_DUE, URGENT = 0, 1, 2
"""A rank's vote for a deep check. The largest wins: one urgent vote is enough, and otherwise all ranks have to be due
(by their clocks and budgets).
"""

_MOST = 64
"""The maximum number of steps between two synchronizations. A vote that becomes due in between waits for the next one."""


class DeepCheckVote(NamedTuple):
    """The vote of one rank on the next deep check."""

    kind: int
    wait: int
    """In how many steps it is due by this rank's clock."""
    room: int
    """After how many more steps it is needed, because the log of batches is full."""

    @classmethod
    def of(
        cls, is_wanted: bool, log: WindowLog, cost: float, budget: float, elapsed: float
    ) -> DeepCheckVote:
        """`cost`: seconds that the last check took; `elapsed`: seconds since then.

        >>> log = WindowLog(8)
        >>> DeepCheckVote.of(False, log, cost=0.1, budget=0.01, elapsed=2.0)
        DeepCheckVote(kind=1, wait=4, room=7)
        >>> DeepCheckVote.of(True, log, cost=0.1, budget=0.01, elapsed=2.0).kind == URGENT
        True
        """
        if is_wanted or log.is_full(num_more=1):
            return cls(URGENT, 1, log.room(is_anew=True))
        missing = cost - budget * elapsed
        if missing <= 0:
            return cls(DUE, 1, log.room())
        a_step = budget * elapsed / (len(log) + 1)
        wait = missing / a_step if a_step > 0 else math.inf
        return cls(NOT_DUE, math.ceil(min(wait, _MOST)), log.room())


class Agreed(NamedTuple):
    """The result of one all-reduce, the same on every rank."""

    is_bad: bool
    is_due: bool
    is_alike: bool | None = None
    """Whether all ranks check the same gradients; None if unknown."""
    most: int = 1
    """The maximum number of steps until the next synchronization."""

    @staticmethod
    def encode(vote: DeepCheckVote, digest: float | None) -> tuple[float, ...]:
        """The values that a rank sends after its flag, of which the maximum is received."""
        unlike = digest is None or not math.isfinite(digest)
        both = (math.inf, math.inf) if unlike or digest is None else (digest, -digest)
        return (vote.kind, vote.wait, -vote.room, *both)

    @classmethod
    def decode(cls, largest: list[float]) -> Agreed:
        """
        >>> Agreed.decode([0.0, *Agreed.encode(DeepCheckVote(NOT_DUE, 9, 5), 2.5)])
        Agreed(is_bad=False, is_due=False, is_alike=True, most=5)
        >>> Agreed.decode([0.0, NOT_DUE, 9.0, -5.0, 2.5, -2.0]).is_alike
        False
        """
        bad, kind, wait, room, high, low = largest
        is_alike = None if bad or high == low == 0 else high == -low
        return cls(bad != 0, kind != NOT_DUE, is_alike, max(1, int(min(wait, -room))))


def digest_of(norms: list[Any]) -> float:
    """A digest of what a rank checks: different gradients give a different number."""
    return math.fsum(float(n) * (1 + i % 7) for i, n in enumerate(norms))


@dataclass
class SyncSchedule:
    """The synchronizations for the steps of one optimizer, counted alike on every rank.

    >>> meetings = SyncSchedule()
    >>> for _ in range(3):
    ...     meetings.note(Agreed(False, False, is_alike=True, most=9))
    >>> meetings.left
    3
    """

    left: int = 0
    """Steps without a synchronization before the next one."""
    num_disagreements: int = 0
    """How often this rank saw a bad value that the others did not see."""
    _gap: int = 0
    _is_over: bool = False
    """Whether the ranks check different gradients, so that they synchronize in every step."""

    @property
    def are_spaced(self) -> bool:
        """Whether there are steps without a synchronization."""
        return self._gap > 1

    def note(self, agreed: Agreed) -> None:
        """Note a synchronization; while all digests are equal, the interval doubles."""
        if agreed.is_bad:
            self.left = 0
            return
        if agreed.is_alike is not None:
            self._is_over = self._is_over or not agreed.is_alike
            self._gap = 1 if self._is_over else min(2 * self._gap or 1, _MOST)
        self.left = min(self._gap, agreed.most) - 1 if self._gap else 0
