"""Decides when ranks must ask each other about a step, and when each can judge alone.

After a gradient exchange every rank has the same gradients (DistributedDataParallel, a loop that averages them by
hand), or the same norm of all of them (`clip_grad_norm_` over shards). Then all see the same, and nobody has to be asked.
Whether it is so is measured, not assumed: at a meeting the ranks compare what they look at, and the next one comes
later only while it was the same on all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..window_log import WindowLog

__all__ = ["DUE", "NOT_DUE", "URGENT", "Agreed", "DeepCheckVote", "SyncSchedule", "digest_of"]

DUE, NOT_DUE, URGENT = 0, 1, 2
"""A rank's vote for a deep check. The largest of all counts: one urgent vote is enough, and without
one a single rank that is not due yet (its clock, its budget) is waited for."""

_MOST = 64
"""Steps from one meeting to the next, where they are short: a rank's clock may want the next one earlier. What it
votes for meanwhile waits for it."""


class DeepCheckVote(NamedTuple):
    """What one rank wants of a deep check."""

    kind: int
    wait: int
    """In how many steps it is due by this rank's clock."""
    room: int
    """After how many more steps it has to be: the memory of batches is full then."""

    @classmethod
    def of(
        cls, is_wanted: bool, log: WindowLog, cost: float, budget: float, elapsed: float
    ) -> DeepCheckVote:
        """`cost`: seconds that the last one took; `elapsed`: since then.

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
    """What one all-reduce told every rank alike."""

    is_bad: bool
    is_due: bool
    is_alike: bool | None = None
    """Whether all of them look at the same; None where that did not show."""
    most: int = 1
    """Steps that the next meeting may be away."""

    @staticmethod
    def encode(vote: DeepCheckVote, digest: float | None) -> tuple[float, ...]:
        """A rank's part behind its flag; the largest of each will be heard."""
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
    """One number of what a rank looks at: other gradients give another one."""
    return math.fsum(float(n) * (1 + i % 7) for i, n in enumerate(norms))


@dataclass
class SyncSchedule:
    """Those about the steps of one optimizer; every rank counts them alike.

    >>> meetings = SyncSchedule()
    >>> for _ in range(3):
    ...     meetings.note(Agreed(False, False, is_alike=True, most=9))
    >>> meetings.left
    3
    """

    left: int = 0
    """Steps that are judged without one before the next."""
    num_disagreements: int = 0
    """How often this rank saw something bad that the others did not see."""
    _gap: int = 0
    _is_over: bool = False
    """The ranks look at different things: they are asked in every step."""

    @property
    def are_spaced(self) -> bool:
        """Whether there are steps without one."""
        return self._gap > 1

    def note(self, agreed: Agreed) -> None:
        """One was held; twice as many steps to the next one, while all is alike."""
        if agreed.is_bad:
            self.left = 0
            return
        if agreed.is_alike is not None:
            self._is_over = self._is_over or not agreed.is_alike
            self._gap = 1 if self._is_over else min(2 * self._gap or 1, _MOST)
        self.left = min(self._gap, agreed.most) - 1 if self._gap else 0
