"""The order of an investigation: replay, trace, time travel for corrupted state, diagnosis.

It is a coroutine: it yields the replays it needs and receives their results, so it does not depend on the vehicle that
runs them. It leaves the training as if the bad step had not run.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace

from ..locate.notes import is_no_mask
from ..locate.slice import Origin
from ..records import Incident, Location
from ..runtime.history import row_of
from ..runtime.incidents import new_incident
from ..runtime.recovery.carry_out import DEEP
from ..runtime.saved_state import SmallStateCopy, StateCopy
from ..runtime.window import Failure, Replay, ReplayResult, Verdict, Window
from .describe import not_applied, scale_collapse, spike_incident, with_lint_note
from .diagnosis import diagnose, diagnose_plain
from .investigation import Investigation, Replays
from .laboratory import Laboratory
from .ranks.across_ranks import by_itself
from .replays.rank_trace import FROM_ANOTHER, JOINING_NOTE
from .replays.vehicles import Vehicle
from .time_travel import TravelResult, travel

__all__ = ["course"]

_UNLUCKY = (
    "the step was not applied: parameters, optimizer state, buffers, scheduler and scaler are as "
    "before it; the random numbers are left behind, since two steps failed on them and with others "
    "this one is finite"
)


_MAX_DRAWS = 8


def course(investigation: Investigation) -> Replays:
    """Run the whole investigation; returns the Verdict."""
    failure, window = investigation.failure, investigation.window
    if failure.symptom == "spike":
        if not window.num_applied:
            investigation.rewind()
        return Verdict(spike_incident(investigation.engine, window, failure), [], window)
    if failure.symptom in DEEP and not window.manual_update:
        return (yield from _travel(investigation, failure))
    left = SmallStateCopy.take(investigation.state)
    is_scaler_skip = failure.symptom == "scaler_skip"
    with_step = failure.symptom == "learning_rate"
    investigation.rewind()
    if not investigation.is_moved and not window.manual_update and investigation.is_state_bad():
        return (yield from _travel(investigation, failure))
    before = StateCopy()
    if with_step:
        before.take(investigation.state, window.rng)
    result = yield investigation.trace_replay(is_unscaled=is_scaler_skip, with_step=with_step)
    if result.failure is None and investigation.engine.ranks.is_joining():
        return _from_another(investigation, result)
    if not is_scaler_skip and result.failure is None and result.is_complete:
        result = yield from _replay_again(investigation, result, with_step)
    is_unknown = not result.is_complete and result.failure is None
    if not with_step and (is_unknown or _is_taken(investigation, result)):
        result = yield from _on_another_batch(investigation, result)
    result = yield from _trace_further_back(investigation, result, is_scaler_skip, with_step)
    investigation.traced = result
    if with_step:
        before.restore()
    if is_scaler_skip and result.failure is None:
        left.restore()
        return Verdict(_scale_incident(investigation), [], window)
    found, noticed = result.failure or failure, None
    if investigation.was_corrupted_by_own_update(result) and window.step:
        assert result.origin is not None and result.origin.source is not None
        found = Failure("parameter", window.step - 1, name=result.origin.source.name)
        noticed = window.step
    began_corrupted = investigation.began_corrupted(result) and not window.manual_update
    if investigation.engine.ranks.broadcast_from(investigation.leader, began_corrupted):
        return (yield from _travel(investigation, found))
    investigation.rewind()
    if investigation.is_moved:
        yield from _undo_other_steps(investigation)
    return (
        yield from _finish(
            investigation, found, result.origin, investigation.location(result), [], noticed
        )
    )


def _from_another(investigation: Investigation, result: ReplayResult) -> Verdict:
    """The verdict if the bad part of a sum over the ranks came from another rank."""
    window, ranks = investigation.window, investigation.engine.ranks
    ranks.has_received = result.is_complete
    investigation.rewind()
    note = FROM_ANOTHER if result.is_complete else JOINING_NOTE
    location = Location(is_reproduced=False, method="none", note=note)
    incident = investigation.incident(investigation.failure, None, location, None)
    if window.batches[0].loss_fn is None:
        investigation.rng_after.restore()
    return Verdict(incident, [], window, keeps_random_state=window.is_loaderless)


def _replay_again(
    investigation: Investigation, result: ReplayResult, with_step: bool
) -> Generator[Replay, ReplayResult, ReplayResult]:
    """Replay a step that was finite this time once more: only two finite replays count as chance."""
    if not investigation.has_drawn_the_same():
        investigation.is_on_other_numbers = True
        result.is_complete = False
        return (
            result
            if investigation.engine.ranks.is_on
            else (yield from _on_other_numbers(investigation, result))
        )
    investigation.num_finite, first = 1, investigation.trace
    investigation.rewind()
    again = yield investigation.trace_replay(with_step=with_step)
    if again.failure is not None:
        investigation.num_finite = 0
        return again
    investigation.trace = first
    investigation.num_finite += again.is_complete
    return result


def _on_other_numbers(investigation: Investigation, first: ReplayResult) -> Replays:
    """Trace the step on other random numbers that make it fail, if its own cannot be drawn again."""
    trace = investigation.trace
    for _ in range(_MAX_DRAWS):
        start = investigation.rng_after.current()
        investigation.rewind()
        start.restore()
        result: ReplayResult = yield investigation.trace_replay()
        if result.failure is not None and result.origin is not None:
            investigation.window.rng = start  # all later replays start with these
            return result
    investigation.trace = trace
    return first


def _trace_further_back(
    investigation: Investigation, result: ReplayResult, is_unscaled: bool, with_step: bool
) -> Generator[Replay, ReplayResult, ReplayResult]:
    """If the bad value came from a variable, also replay the earlier statements that computed it."""
    while (extended := _extended_vehicle(investigation, result)) is not None:
        vehicle, trace, window = investigation.vehicle, investigation.trace, investigation.window
        investigation.rewind()
        investigation.vehicle = extended
        again = yield investigation.trace_replay(is_unscaled=is_unscaled, with_step=with_step)
        is_worse = again.failure is None or again.origin is None
        if investigation.engine.ranks.broadcast_from(investigation.leader, is_worse):
            investigation.vehicle, investigation.trace, investigation.window = (
                vehicle,
                trace,
                window,
            )
            break
        result = again
    return (yield from _name_what_was_given(investigation, result, is_unscaled, with_step))


def _name_what_was_given(
    investigation: Investigation, result: ReplayResult, is_unscaled: bool, with_step: bool
) -> Generator[Replay, ReplayResult, ReplayResult]:
    """If the bad value was there before all that can be replayed, trace once more and name the variable that holds it."""
    if investigation.engine.ranks.is_on or not _was_given(result.origin):
        return result
    trace = investigation.trace
    investigation.rewind()
    investigation.names_data = True
    again = yield investigation.trace_replay(is_unscaled=is_unscaled, with_step=with_step)
    if again.failure is not None and again.origin is not None:
        return again
    investigation.trace = trace
    return result


def _was_given(origin: Origin | None) -> bool:
    first = origin.path[0].bad_inputs if origin is not None and origin.path else []
    return any(not b.producers and b.source is None and is_no_mask(b.bad) for b in first)


def _extended_vehicle(investigation: Investigation, result: ReplayResult) -> Vehicle | None:
    """The vehicle that computes more of the iteration, if that would help; with several ranks, the leader decides."""
    is_open = _has_external_input(result.origin) or _was_held(investigation, result.origin)
    extended = investigation.vehicle.extended() if is_open else None
    ranks = investigation.engine.ranks
    if not ranks.is_on:
        return extended
    if not ranks.broadcast_from(investigation.leader, extended is not None):
        return None
    extended = extended or investigation.vehicle.extended()
    return extended if all(ranks.gather(extended is not None)) else None


def _was_held(investigation: Investigation, origin: Origin | None) -> bool:
    """Whether the slice ended at a variable of a function, which may have computed it before its loop."""
    source = origin.source if origin is not None and origin.birth is None else None
    return source is not None and source.kind == "batch" and investigation.window.is_loaderless


def _has_external_input(origin: Origin | None) -> bool:
    """Whether the slice ended at an operator whose bad input has an unknown origin."""
    return (
        origin is not None
        and origin.birth is not None
        and bool(origin.birth.bad_inputs)
        and not origin.birth.is_uninitialized
        and all(not b.producers and b.source is None for b in origin.birth.bad_inputs)
    ) or (origin is not None and origin.birth is None and origin.source is None)


def _is_taken(investigation: Investigation, result: ReplayResult) -> bool:
    """Whether nothing that was traced made the bad loss: it was taken from a variable, because what it was computed from is gone."""
    return (
        result.failure is not None
        and result.origin is None
        and investigation.failure.symptom == "loss"
    )


def _on_another_batch(investigation: Investigation, first: ReplayResult) -> Replays:
    """If values of the step are gone, replay with the current ones, which may fail in the same way: its batch, or only
    what it has overwritten since.
    """
    if investigation.engine.ranks.has_others or investigation.failure.symptom not in (
        "loss",
        "gradient",
    ):
        return first
    investigation.rewind()
    trace = investigation.trace
    before = StateCopy()
    before.take(investigation.state, investigation.window.rng)
    wanted = investigation.trace_replay()
    wanted.vehicle = investigation.trial_vehicle()
    result = yield wanted
    before.restore()
    if result.failure is None or result.origin is None:
        investigation.trace = trace
        return first
    if investigation.has_own_batches:
        investigation.vehicle = wanted.vehicle
    else:
        investigation.is_on_another_batch = True
    return result


def _undo_other_steps(investigation: Investigation) -> Replays:
    """Undo the steps of other optimizers on this batch by rebuilding the state before it, if possible."""
    engine, state = investigation.engine, investigation.state
    if engine.ranks.is_joining() or not state.snapshot.is_taken:
        return
    if not all(investigation.vehicle.can_repeat(w) for w in engine.log):
        return
    moved = StateCopy()
    moved.take(state, investigation.window.rng)
    state.snapshot.restore()
    for window in engine.log:
        if window.rng is not None:
            window.rng.restore()
        result = yield Replay(window=window, is_applied=True)
        if result.failure is not None or not result.is_complete:
            moved.restore()
            return
    state.buffers.copy()
    investigation.window.small_state = state.capture_small()
    investigation.window.is_moved = False
    investigation.rewind()


def _travel(investigation: Investigation, failure: Failure) -> Replays:
    found: TravelResult = yield from travel(investigation, failure)
    return (
        yield from _finish(
            investigation, found.failure, found.origin, found.location, found.redo, found.noticed
        )
    )


def _scale_incident(investigation: Investigation) -> Incident | None:
    """An overflow that vanishes without the scale is normal, unless the scale collapses."""
    engine, window = investigation.engine, investigation.window
    scale = engine.state.scale() or 1.0
    if not engine.scale_watch.note_skip(scale):
        engine.recovery.note_scaler_skip()
        if engine.journal is not None:
            engine.journal.skipped(row_of(window, engine.state), "scaler_skip")
        return None
    engine.scale_watch.note_applied()
    event, location, action = scale_collapse(engine, window, scale)
    incident = new_incident(event, location=location, action=action, history=engine.records())
    if engine.settings.diagnose:
        incident = diagnose_plain(investigation, incident, unscaled="finite")
    return incident


def _finish(
    investigation: Investigation,
    failure: Failure,
    origin: Origin | None,
    location: Location,
    redo: list[Window],
    noticed: int | None = None,
) -> Replays:
    """Diagnose, and restore the random state."""
    engine = investigation.engine
    incident = investigation.incident(failure, origin, location, noticed)
    if engine.ranks.has_others:
        if engine.settings.diagnose:
            found = incident
            incident = by_itself(
                investigation, lambda: diagnose(investigation, found, origin), found
            )
    elif engine.settings.diagnose:
        incident = yield from diagnose(investigation, incident, origin)
    incident = replace(incident, location=with_lint_note(incident.location))
    is_unlucky = investigation.method == "replay" and (
        yield from _skip_numbers(investigation, origin)
    )
    if is_unlucky:
        incident = replace(incident, action=replace(incident.action, detail=_UNLUCKY))
    keeps = is_unlucky or investigation.window.is_loaderless or investigation.vehicle.has_effects
    if keeps and not is_unlucky and incident.action.kind == "skipped":
        detail = not_applied(engine, investigation.window, keeps_random_state=True)
        incident = replace(incident, action=replace(incident.action, detail=detail))
    is_rebuilt = investigation.method == "time_travel"
    if not is_unlucky and not is_rebuilt and investigation.window.batches[0].loss_fn is None:
        # The loop continues after its step, so it needs the random state from there.
        investigation.rng_after.restore()
    verdict = Verdict(incident, redo, investigation.window, keeps_random_state=keeps)
    verdict.is_rebuilt = is_rebuilt
    verdict.outlook = investigation.outlook
    return verdict


def _skip_numbers(
    investigation: Investigation, origin: Origin | None
) -> Generator[Replay, ReplayResult, bool]:
    """Whether the random numbers are the cause; if so, the generators are moved past them.

    After a skipped step the random state is restored, as if the batch had never come. If the numbers are the cause (a
    diffusion model drew the time 1), every later batch would fail on the same numbers. So if two steps in a row fail on
    the same numbers, the second is replayed with the numbers after them; if it is then finite, the bad ones are skipped.
    """
    known = investigation.engine.known
    start, after = investigation.rng_before, investigation.rng_after
    lab = Laboratory(investigation, origin, seconds=math.inf)
    if start is None or start.is_same(after) or not lab.can_replay:
        return False
    draw = known.last_draw
    if draw is None or not draw.start.is_same(start):
        known.note_draw(start, after)
        return False
    outcome, behind = yield from lab.redrawn(draw.following)
    if outcome != "finite":
        draw.following = behind
        return False
    draw.following.restore()
    known.last_draw = None
    return True
