"""Runs one investigation on several ranks: the same replays on each, one result.

Only the rank where the failure began can name an operator, a batch or a parameter; the others only received its values.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator
from dataclasses import replace

from ...locate.slice import Origin
from ...locate.trace import OpTrace
from ...records import Incident, RankPart
from ...runtime.ranks.side_groups import SideGroupError
from ...runtime.samples import whole_numbers
from ...runtime.window import Replay, ReplayResult, Verdict, Window
from ..evidence.gather import weights_of
from ..investigation import Investigation
from ..replays.rank_trace import RankTrace, is_received
from ..replays.replay import drive
from .collective import follow, lead

__all__ = ["by_itself", "together"]

_NO_EXPERIMENTS = (
    "no experiment was made: the model is spread over the ranks, and not all of them could compute their part of "
    "this step again"
)
_ORIGIN, _SENDER, _SYMPTOM, _NOTHING = range(4)
"""The knowledge of a rank, best first: the birth of its own symptom, the birth of a value that it sent, a symptom that
came from elsewhere, nothing.
"""
_ROLES = {_ORIGIN: "began", _SENDER: "sent", _SYMPTOM: "received", _NOTHING: "fine"}
_MOST_INDICES = 64
_FAR = 10.0
"""The growth of the weights from which on they may be the cause."""


def together(
    investigation: Investigation, alone: Generator[Replay, ReplayResult, Verdict]
) -> Generator[Replay, ReplayResult, Verdict]:
    """Run an investigation so that every rank gets the same verdict on each replay."""
    ranks = investigation.engine.ranks
    with contextlib.closing(alone):
        try:
            wanted = next(alone)
            while True:
                result = yield wanted
                wanted = alone.send(_agree(investigation, wanted, result))
        except StopIteration as stop:
            verdict: Verdict = stop.value
    incident = verdict.incident
    # All ranks know whether there is one, but only the leader knows its contents.
    outcome = (incident.to_json() if incident else None), verdict.outlook
    # The leader may have experimented alone until now.
    text, verdict.outlook = ranks.broadcast_from(
        investigation.leader, outcome, 3 * investigation.engine.settings.diagnose_seconds
    )
    verdict.incident = Incident.from_json(text) if text is not None else None
    return verdict


def _agree(investigation: Investigation, wanted: Replay, result: ReplayResult) -> ReplayResult:
    ranks = investigation.engine.ranks
    origin, merit = _own_story(wanted.trace, result)
    loss = result.losses[-1] if result.losses else None
    merits = ranks.gather(
        (merit, ranks.rank, result.is_complete, loss, _indices(investigation.window))
    )
    failures = ranks.gather_failures(result.failure)
    if failures:
        best, leader, *_ = min(merits, key=lambda m: m[:2])
        investigation.ranks = tuple(
            RankPart(rank=r, role=_ROLES[m], loss=loss, indices=at)
            for m, r, _, loss, at in sorted(merits, key=lambda m: m[1])
        )
        own = [f for f in failures if f.rank == leader]
        investigation.is_received = best not in (_ORIGIN, _SENDER)
        failure = own[0] if own and not investigation.is_received else failures[0]
        investigation.leader = failure.rank if investigation.is_received else leader
        result = replace(result, failure=failure)
    return replace(result, origin=origin, is_complete=all(m[2] for m in merits))


def _indices(window: Window) -> tuple[int, ...]:
    return tuple(i for b in window.batches for i in whole_numbers(b.indices))[:_MOST_INDICES]


def _own_story(trace: OpTrace | None, result: ReplayResult) -> tuple[Origin | None, int]:
    origin = result.origin
    if origin is not None and not is_received(origin):
        return origin, _ORIGIN
    sent = trace.first_sent if isinstance(trace, RankTrace) else None
    if sent is not None:
        return sent, _SENDER
    return origin, _SYMPTOM if result.failure is not None else _NOTHING


def by_itself(
    investigation: Investigation,
    diagnose: Callable[[], Generator[Replay, ReplayResult, Incident]],
    incident: Incident,
) -> Incident:
    """The diagnosis by the rank where it began, which experiments if it can compute alone; the others wait for the
    result. If the state has run away, only training steps can show what helps, and those are made by all ranks.
    """
    ranks = investigation.engine.ranks
    if any(ranks.gather(_needs_all(investigation))):
        return _together(investigation, diagnose, incident)
    if investigation.leader == ranks.rank:
        try:
            with ranks.apart():
                found = drive(diagnose(), investigation.compute)
            return _noted(found, f"run by rank {ranks.rank} alone")
        except Exception as e:
            _warn(e)
            return _by_rules(diagnose(), incident)
    return incident


def _needs_all(investigation: Investigation) -> bool:
    """Whether this rank's part of the step cannot be computed without the others, or not change the training alone."""
    trace = investigation.trace
    return (
        not investigation.engine.ranks.can_be_apart
        or (isinstance(trace, RankTrace) and trace.is_exchanging)
        or bool(investigation.engine.ranks.waiting)
        or _has_run_away(investigation)
    )


def _has_run_away(investigation: Investigation) -> bool:
    """Whether the weights may be the cause. What helps then is looked for once, unless the policy acts on it."""
    engine = investigation.engine
    tried = (e.name for i in engine.incidents for e in i.diagnosis.experiments)
    if "smaller_lr" in tried and not engine.policy.is_adaptive:
        return False
    return weights_of(investigation).total_growth > _FAR


def _together(
    investigation: Investigation,
    diagnose: Callable[[], Generator[Replay, ReplayResult, Incident]],
    incident: Incident,
) -> Incident:
    """The diagnosis of a sharded model: one rank decides, all compute."""
    ranks = investigation.engine.ranks
    is_possible = (
        investigation.traced is not None
        and investigation.traced.is_complete
        and investigation.window.batches
    )
    if not all(ranks.gather(bool(is_possible))):
        return _without_experiments(investigation, diagnose, incident)
    if investigation.leader != ranks.rank:
        follow(investigation)
        return incident
    try:
        found: Incident = lead(investigation, diagnose)
    except SideGroupError:
        raise
    except Exception as e:
        _warn(e)
        return _by_rules(diagnose(), incident)
    return _noted(found, "run by all ranks together")


def _without_experiments(
    investigation: Investigation,
    diagnose: Callable[[], Generator[Replay, ReplayResult, Incident]],
    incident: Incident,
) -> Incident:
    if investigation.leader != investigation.engine.ranks.rank:
        return incident
    found = _by_rules(diagnose(), incident)
    if found.diagnosis.cause is None:
        return found
    evidence = (*found.diagnosis.evidence, _NO_EXPERIMENTS)
    return replace(found, diagnosis=replace(found.diagnosis, evidence=evidence))


def _noted(incident: Incident, by_whom: str) -> Incident:
    """Add who has run the proof."""
    fixes = []
    for fix in incident.diagnosis.fixes:
        if fix.proof is not None and fix.status == "proved":
            note = "; ".join(n for n in (fix.proof.note, by_whom) if n)
            fix = replace(fix, proof=replace(fix.proof, note=note))
        fixes.append(fix)
    return replace(incident, diagnosis=replace(incident.diagnosis, fixes=tuple(fixes)))


def _warn(error: Exception) -> None:
    # The other ranks wait for this incident, which is useful even without a cause.
    warnings.warn(
        f"the cause could not be looked for: {type(error).__name__}: {error}", stacklevel=3
    )


def _by_rules(diagnosis: Generator[Replay, ReplayResult, Incident], incident: Incident) -> Incident:
    """The diagnosis without experiments: with a sharded model, an experiment would change the step of one rank only, and
    could hang.
    """
    try:
        with contextlib.closing(diagnosis):
            next(diagnosis)
            while True:
                diagnosis.send(ReplayResult(is_complete=False))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except Exception as e:
        _warn(e)
        return incident
