"""Describes the failed step for its incident: event, phase, action; and the whole incident of a spike."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..locate.slice import Origin
from ..locate.trace import SourceRef
from ..patches.provenance import provenance
from ..records import Action, Event, Incident, Location
from ..report.text import headline
from ..runtime.engine import Engine
from ..runtime.incidents import new_incident
from ..runtime.recovery.carry_out import DEEP
from ..runtime.state import TrainState
from ..runtime.warn.monitor import SPIKE_NAMES
from ..runtime.window import Failure, Window
from .evidence.loop_counters import counters

__all__ = [
    "REBUILT",
    "WENT_BACK",
    "action_kind_of",
    "event_of",
    "not_applied",
    "on_rank",
    "phase_of",
    "scale_collapse",
    "spike_incident",
    "with_lint_note",
]

WENT_BACK = (
    "parameters, optimizer state and buffers went back to the last snapshot, {} steps ago; what was "
    "learned since then is lost, because those steps cannot be computed again"
)
REBUILT = (
    "the state went back to the last snapshot, and the {} since then were computed again on "
    "the same batches and applied: nothing was left out"
)
_LEFT_BY_SCRIPT = (
    "the script has seen the bad value itself and does not train on it; buffers that its forward may have "
    "corrupted are restored"
)
_PHASES = {
    "gradient": "backward", "parameter": "optimizer", "optimizer_state": "optimizer",
    "learning_rate": "optimizer", "buffer": "forward",
}  # fmt: skip


def event_of(
    engine: Engine, window: Window, failure: Failure, phase: str, noticed: int | None = None
) -> Event:
    """The event of a failed window."""
    return Event(
        step=failure.step,
        epoch=window.epoch,
        phase=phase,
        symptom=failure.symptom if failure.symptom != "scaler_skip" else "gradient",
        name=failure.name,
        value=failure.value,
        noticed_at_step=noticed,
        loss=_last_loss(window),
        grad_norm=_scalar(window.norm),
        lr=engine.state.lrs(),
        scale=engine.state.scale(),
        rank=engine.ranks.rank,
        counters=_counters(engine, window, failure),
        message=_raised(window, failure),
    )


def _counters(engine: Engine, window: Window, failure: Failure) -> dict[str, int]:
    """The script's loop counters in the failed step; for an earlier step they are unknown."""
    is_now = failure.step == window.step and failure.symptom not in DEEP
    if not is_now or engine.settings.deferred:
        return {}
    traceback = window.error.__traceback__ if window.error else None
    return counters(sys._getframe(1), traceback, () if window.error else window.saved_frames)


def _raised(window: Window, failure: Failure) -> str:
    """A sentence about an exception before there was a loss, else ""."""
    if window.error is None or failure.symptom != "loss" or failure.value is not None:
        return ""
    return f"{type(window.error).__name__} was raised on values that are not finite"


def on_rank(event: Event) -> Event:
    """The event with its rank in its message."""
    text = headline(Incident(id="", event=event)).partition(": ")[2]
    return replace(event, message=f"{text} on rank {event.rank}")


def with_lint_note(location: Location) -> Location:
    """The location with a note if lint would have found it before the run."""
    from ..lint import sentence_at  # imported only after a failure

    said = sentence_at(location.file, location.line)
    note = "; ".join(n for n in (location.note, said) if n)
    return replace(location, note=note) if said else location


def not_applied(engine: Engine, window: Window, keeps_random_state: bool = False) -> str:
    """A sentence about what is unchanged after a step that was not applied."""
    if window.manual_update:
        return window.manual_update
    if window.is_left_by_script:
        return _LEFT_BY_SCRIPT
    if window.is_moved:
        return (
            "the step was not applied; another optimizer's step on the same batch had been applied "
            "before and stays"
        )
    where = " on any rank" if engine.ranks.is_together else ""
    text = f"the step was not applied{where}: parameters, optimizer state, "
    if window.error is not None:
        text = f"the script's own error ended the training; {text}"
    if window.is_loaderless:
        scaler = " and scheduler" if engine.state.is_scaled else ", scheduler and scaler"
        return f"{text}buffers{scaler} are as before it"
    if keeps_random_state:
        return (
            f"{text}buffers, scheduler and scaler are as before it; what the loop itself has changed "
            "in this iteration stays, and so its random numbers are used up"
        )
    return f"{text}buffers, scheduler, scaler and random state are as before it"


def action_kind_of(window: Window) -> str:
    """The kind of action for a skipped window."""
    if window.is_left_by_script:
        return "none"
    if not window.manual_update:
        return "skipped"
    return "put_back" if window.is_reverted else "none"


def phase_of(state: TrainState, failure: Failure, origin: Origin | None) -> str:
    """The phase of the step in which the value was born."""
    if origin is None:
        return _PHASES.get(failure.symptom, "loss")
    birth = origin.birth
    if birth is not None:
        if birth.direction in ("backward", "optimizer"):
            return birth.direction
        links = [n.direction for n in origin.path]
        if failure.symptom == "gradient" and "backward" not in links:
            return "backward"  # the script's own code computed it from finite gradients
        return "forward" if birth.module is not None else "loss"
    source = origin.source
    if source is None or source.kind == "variable":
        consumer = origin.consumer
        return "forward" if consumer is not None and consumer.module is not None else "loss"
    if source.kind == "batch":
        return "data"
    if f"{source.kind} {source.name}" in state.initially_bad:
        return "checkpoint" if _was_restored(state, source) else "parameter"
    return "optimizer" if source.kind != "buffer" else "forward"


def _was_restored(state: TrainState, source: SourceRef) -> bool:
    targets: list[Any] = list(state.optimizers)
    if source.kind != "optimizer_state":
        targets = [m for root in state.roots.values() for m in root.modules()]
    return provenance.restore_of(*targets) is not None


def scale_collapse(engine: Engine, window: Window, scale: float) -> tuple[Event, Location, Action]:
    """The event for a scaler that keeps skipping although the unscaled gradients are finite."""
    event = Event(
        step=window.step,
        epoch=window.epoch,
        phase="backward",
        kind="scale_collapse",
        symptom="gradient",
        loss=_last_loss(window),
        lr=engine.state.lrs(),
        scale=scale,
        message="the GradScaler keeps skipping; without its scale the gradients are finite",
    )
    location = Location(method="replay", note="gradients are finite at a loss scale of 1")
    return event, location, Action(kind="skipped", detail="the GradScaler skipped the step itself")


def _last_loss(window: Window) -> float | None:
    for _step, loss in window.losses:
        value = _scalar(loss)
        if value is not None and value - value != 0:
            return value
    return _scalar(window.losses[-1][1]) if window.losses else window.loss


def _scalar(value: Tensor | None) -> float | None:
    if value is None or value.numel() != 1 or value.is_complex():
        return None
    return float(value.detach())


def spike_incident(engine: Engine, window: Window, failure: Failure) -> Incident:
    """The incident of a spike. All values are finite, so there is nothing to trace."""
    what = SPIKE_NAMES[failure.name or "loss"]
    is_loss = failure.name == "loss"
    event = replace(
        event_of(engine, window, failure, "loss" if is_loss else "backward"),
        kind="spike",
        symptom="loss" if is_loss else "gradient",
        message=f"the {what} {failure.value:.4g} is far above what is usual",
    )
    return new_incident(
        event,
        location=Location(method="none", note="a spike of finite values: nothing to trace"),
        action=Action(kind="skipped", detail="the step was not applied"),
        history=engine.records(),
    )
