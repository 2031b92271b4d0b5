"""Makes the incident of a spike on which the policy acts."""

from __future__ import annotations

from dataclasses import replace

from ..records import Action, Incident, Location
from ..runtime.engine import Engine
from ..runtime.incidents import new_incident
from ..runtime.warn.lookout import SPIKE_NAMES
from ..runtime.window import Failure, Window
from .describe import event_of

__all__ = ["spike_incident"]


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
