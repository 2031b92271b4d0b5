"""Experiments on a sharded model: one rank decides, all compute.

The rank where the failure began runs the diagnosis. It sends each replay to the others, every rank computes its part at the
same time, and the results are combined. A rank that cannot continue ends the replay for all (`Ranks.end_replay`); one
that is gone ends the investigation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from ...runtime.ranks.agreement import RankFailure
from ...runtime.window import Replay, ReplayResult
from ..investigation import Investigation
from ..laboratory import Laboratory
from ..replays.changed_source import NotRunnable
from ..replays.replay import drive
from .orders import NotSendable, Sources, fingerprint, packed, unpacked

__all__ = ["Conductor", "follow", "lead"]

_NOT_RUN = ReplayResult(is_complete=False)


class Conductor:
    """Sends requests to the other ranks, and combines the results of all of them."""

    def __init__(self, investigation: Investigation) -> None:
        self._about = investigation
        self._ranks = investigation.engine.ranks
        self._todo: list[tuple[str, tuple[Any, ...]]] = []
        self.num_replays = 0

    def note(self, name: str, *args: Any) -> None:
        """Send a call of a laboratory method to the other ranks, before their next replay."""
        self._todo.append((name, args))

    def compute(self, wanted: Replay) -> ReplayResult:
        try:
            order = packed(self._about, (self._todo, wanted))
        except NotSendable:
            return _NOT_RUN
        self._todo = []
        self.num_replays += 1
        self._ranks.broadcast_from(self._ranks.rank, order)
        own = self._about.compute(wanted)
        return _merged(own, self._ranks.gather(_part(own, self._ranks.rank)), self._ranks.rank)

    def end(self) -> None:
        """Release the other ranks, with the remaining calls; what they have begun, they restore themselves."""
        try:
            order = packed(self._about, (self._todo, None))
        except NotSendable:
            order = packed(self._about, ([], None))
        self._ranks.broadcast_from(self._ranks.rank, order)


def lead(
    investigation: Investigation, diagnosis: Callable[[], Generator[Replay, ReplayResult, Any]]
) -> Any:
    """Run the diagnosis on the rank where the failure began."""
    _share_fingerprints(investigation)
    investigation.conductor = conductor = Conductor(investigation)
    try:
        return drive(diagnosis(), conductor.compute)
    finally:
        investigation.conductor = None
        if investigation.engine.ranks.is_on:
            conductor.end()


def follow(investigation: Investigation) -> None:
    """Serve the requests of the leading rank until it is done."""
    ranks, settings = investigation.engine.ranks, investigation.engine.settings
    is_same = _share_fingerprints(investigation)
    lab = Laboratory(investigation, None, settings.diagnose_seconds)
    known: Sources = {}
    try:
        while True:
            order = ranks.broadcast_from(investigation.leader, None, 3 * settings.diagnose_seconds)
            wanted: Replay | None = None
            try:
                todo, wanted = unpacked(investigation, order, is_same, known)
            except NotRunnable:
                result = _without_this_rank(investigation)
            else:
                for name, args in todo:
                    getattr(lab, name)(*args)
                if wanted is None:
                    return
                result = investigation.compute(wanted)
            ranks.gather(_part(result, ranks.rank))
    finally:
        lab.restore_if_begun()


def _share_fingerprints(investigation: Investigation) -> bool:
    """Whether this rank computes the same batch as the one where it began."""
    ranks = investigation.engine.ranks
    own = fingerprint(investigation.window)
    return bool(dict(ranks.gather((ranks.rank, own)))[investigation.leader] == own)


def _without_this_rank(investigation: Investigation) -> ReplayResult:
    """End the replay that the other ranks are already in."""
    investigation.engine.ranks.begin_replay()
    investigation.engine.ranks.end_replay(is_broken=True)
    return _NOT_RUN


_Part = tuple[int, Any, bool, list[float], "float | None"]


def _part(result: ReplayResult, rank: int) -> _Part:
    failure = result.failure
    given = None
    if failure is not None:
        rank_of = failure.rank if isinstance(failure, RankFailure) else rank
        given = (failure.symptom, failure.step, failure.name, failure.value, rank_of)
    return rank, given, result.is_complete, result.losses, result.grad_norm


def _merged(own: ReplayResult, parts: list[_Part], rank: int) -> ReplayResult:
    others = [p for p in parts if p[0] != rank]
    failures = [RankFailure(*given) for _, given, _, _, _ in others if given is not None]
    norms = [n for *_, n in parts if n is not None]
    return replace(
        own,
        failure=own.failure or (failures[0] if failures else None),
        is_complete=own.is_complete and all(p[2] for p in others),
        # This rank's own losses come last, because a search uses those.
        losses=[loss for p in others for loss in p[3]] + own.losses,
        grad_norm=sum(n * n for n in norms) ** 0.5 if norms else None,
    )
