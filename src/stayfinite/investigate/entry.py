"""The entry point for a bad step: a known incident, or a new investigation."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType

from ..errors import StayfiniteError
from ..locate.trace import OpTrace
from ..records import Incident, Location
from ..runtime.engine import Engine
from ..runtime.incidents import new_incident
from ..runtime.known import KnownIncident, signature_of
from ..runtime.ranks.groups import still_to_run_backward
from ..runtime.ranks.side_groups import SideGroupError
from ..runtime.recovery.carry_out import DEEP
from ..runtime.saved_state import StateCopy
from ..runtime.undo import modes
from ..runtime.window import Failure, Replay, ReplayResult, Verdict, Window
from .course import course
from .describe import action_kind_of, event_of, not_applied
from .investigation import Investigation
from .ranks.across_ranks import together
from .replays.choice import choose_vehicle, trial_vehicle
from .replays.replay import drive
from .replays.vehicles import NoVehicle, StepVehicle, Vehicle, refusing_vehicle
from .time_travel import go_back

__all__ = ["investigate"]

_NOT_ALL = "another rank could not go on with it to the end"
_COUNTED = ("loss", "gradient", "learning_rate")


def investigate(engine: Engine, window: Window, failure: Failure) -> Verdict:
    """Find out what happened, where and why; the training is left as if the step had not run."""
    is_countable = failure.symptom in _COUNTED and not engine.ranks.has_others
    signature = signature_of(window, failure) if is_countable else None
    known = engine.known.find(signature) if is_countable else None
    is_open = (
        known is not None and known.incident.location.line is None and bool(window.saved_frames)
    )
    if known is not None and not is_open and not engine.known.has_failed_on(window.rng):
        return _repeat(engine, window, failure, known)
    engine.ranks.waiting = still_to_run_backward(filter(window.is_of, engine.state.optimizers))
    frame = sys._getframe(1)
    vehicle = _vehicle(engine, window, failure, frame)
    investigation = Investigation(engine, window, failure, vehicle)
    investigation.trial_vehicle = lambda: trial_vehicle(engine, window, frame)
    verdict = _investigate_safely(investigation)
    verdict.run_again = lambda old, is_current: _run_again(engine, vehicle, old, is_current)
    verdict.can_repeat = vehicle.can_repeat(window)
    # If an earlier step corrupted the state, the next failure that looks the same may have another cause.
    is_own = verdict.incident is not None and not verdict.is_rebuilt
    if is_countable and is_own and verdict.incident.event.kind == "nonfinite":
        engine.known.add(signature, verdict.incident, verdict.keeps_random_state)
    return verdict


def _vehicle(engine: Engine, window: Window, failure: Failure, frame: FrameType) -> Vehicle:
    ranks = engine.ranks
    if ranks.is_lost and not ranks.can_be_apart:
        return NoVehicle(engine)  # the model is sharded, and this rank has only a part of it
    try:
        return _choose(engine, window, failure, frame)
    except Exception:
        if not ranks.is_together:
            raise
        return NoVehicle(
            engine
        )  # the other ranks wait for this one at the end of the investigation


def _choose(engine: Engine, window: Window, failure: Failure, frame: FrameType) -> Vehicle:
    """A loop has several candidates; the loss function of `guard.step` can simply be called again."""
    if (refusing := refusing_vehicle(engine)) is not None:
        return refusing
    if window.batches and window.batches[0].loss_fn is not None:
        assert engine.step_parts is not None
        return StepVehicle(engine, engine.step_parts)
    return choose_vehicle(engine, window, failure, frame)


def _repeat(engine: Engine, window: Window, failure: Failure, known: KnownIncident) -> Verdict:
    """Report a known incident again, without an investigation."""
    old = known.incident
    investigation = Investigation(engine, window, failure, Vehicle(engine))
    engine.known.note_draw(investigation.rng_before, investigation.rng_after)
    investigation.rewind()
    event = event_of(engine, window, failure, old.event.phase)
    incident = new_incident(
        replace(event, value=failure.value),
        location=replace(old.location, first_bad=""),  # of another batch
        diagnosis=replace(old.diagnosis, samples=(), dataset_indices=(), worker=None),
        action=replace(
            old.action,
            kind=action_kind_of(window),
            detail=not_applied(engine, window, known.keeps_random_state),
        ),
    )
    incident = replace(incident, same_as=old.id)
    if window.batches[0].loss_fn is None:
        investigation.rng_after.restore()
    frame = sys._getframe(2)

    def run_again(window: Window, is_current: bool) -> Verdict | bool:
        vehicle = _choose(engine, window, failure, frame)
        return _run_again(engine, vehicle, window, is_current)

    verdict = Verdict(incident, [], window, keeps_random_state=known.keeps_random_state)
    verdict.run_again = run_again
    return verdict


def _run_again(
    engine: Engine, vehicle: Vehicle, window: Window, is_current: bool
) -> Verdict | bool:
    """Compute a window and apply its step; False if that is not possible.

    Returns a Verdict if the window is bad even on a good state. It is skipped then, and the caller continues
    with the windows after it.
    """
    if not vehicle.can_repeat(window):
        return False
    if not len(engine.state.schedulers):
        engine.state.set_lrs(window.lrs)
    window.rng = engine.rng.capture()
    before = StateCopy()
    before.take(engine.state, window.rng)
    try:
        result = vehicle.run(Replay(window=window, is_applied=True, is_current=is_current))
    except SideGroupError:
        result = ReplayResult(is_complete=False)
    if result.failure is not None and not engine.ranks.has_others:
        before.restore()
        return _investigate_repeated(engine, vehicle, window, result.failure)
    if not engine.ranks.settle(result.failure is None and result.is_complete).is_fine:
        if engine.ranks.has_others:
            before.restore()  # some ranks may have applied it
        return False
    engine.state.buffers.copy()
    window.failure = None
    window.num_applied = 1
    window.loss = result.losses[-1] if result.losses else window.loss
    window.losses = []
    if not is_current:
        engine.close_healthy(window)
    return True


def _investigate_repeated(
    engine: Engine, vehicle: Vehicle, window: Window, failure: Failure
) -> Verdict:
    engine.state.buffers.copy()
    window.small_state = engine.state.capture_small()
    window.failure = failure
    window.num_applied, window.is_moved = 0, False
    if failure.symptom in DEEP:
        engine.log.append(window)  # time travel looks for it there
    return _investigate_safely(Investigation(engine, window, failure, vehicle))


def _investigate_safely(investigation: Investigation) -> Verdict:
    """Investigate; an error of our own must not end the training, nor change its modes or gradients."""
    put_modes = modes(investigation.state.roots.values())()
    put_grads = investigation.state.take_grads()  # the loop needs its gradients afterwards
    window = investigation.window
    try:
        verdict, error = _run_to_end(investigation)
        is_fine, has_moved = investigation.engine.ranks.settle(
            error is None, has_moved=investigation.method == "time_travel"
        )
        if not is_fine:
            error = error or SideGroupError(_NOT_ALL)
        if verdict is not None and error is None:
            return verdict
        assert error is not None
        if OpTrace.is_strict and not isinstance(error, SideGroupError):
            raise error
        return _give_up(investigation, error, window, has_moved)
    finally:
        put_modes()
        put_grads()
        window.rng = investigation.rng_before


def _run_to_end(investigation: Investigation) -> tuple[Verdict | None, Exception | None]:
    """Returns the verdict or the error; after an error, ranks that wait for this one are released."""
    ranks = investigation.engine.ranks
    try:
        replays = course(investigation)
        if ranks.is_on:
            replays = together(investigation, replays)
        return drive(replays, investigation.compute), None
    except StayfiniteError:
        raise
    except Exception as error:
        if ranks.is_on:
            ranks.talk.give_up()
        return None, error


def _give_up(
    investigation: Investigation, error: Exception, window: Window, has_moved: bool
) -> Verdict:
    """The verdict after an error: what is known so far; `has_moved`: a rank restored its snapshot, so all do."""
    investigation.window = window
    if has_moved and investigation.state.snapshot.is_taken:
        # Time travel was interrupted, so only the snapshot is a consistent state.
        investigation.num_lost_steps = max(1, go_back(investigation))
    else:
        investigation.rewind()
    note = f"the investigation itself failed, which is a bug: {type(error).__name__}: {error}"
    if isinstance(error, SideGroupError):
        note = f"the ranks could not investigate it together: {error}"
    location = Location(is_reproduced=False, method="none", note=note)
    incident: Incident | None = investigation.known
    if incident is not None:
        location = replace(incident.location, note=note)
        incident = replace(incident, location=location, action=investigation.action())
    else:
        incident = investigation.incident(investigation.failure, None, location, None)
    if window.batches[0].loss_fn is None:
        investigation.rng_after.restore()
    return Verdict(incident, [], window, keeps_random_state=window.is_loaderless)
