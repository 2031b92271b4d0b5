"""The incident of a spike that the policy acts on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..records import Action, Event, Incident, Location
from .about import environment, new_incident_id, now
from .window import Failure, Window

if TYPE_CHECKING:
    from .core import Core

__all__ = ["SPIKE_NAMES", "spike_incident"]

SPIKE_NAMES = {"loss": "loss", "grad_norm": "gradient norm"}


def spike_incident(core: Core, window: Window, failure: Failure) -> Incident:
    """A spike that the policy acts on; nothing is non-finite, so there is nothing to trace."""
    what = SPIKE_NAMES[failure.name or "loss"]
    event = Event(
        step=failure.step, epoch=window.epoch, kind="spike", value=failure.value, name=failure.name,
        phase="loss" if failure.name == "loss" else "backward",
        symptom="loss" if failure.name == "loss" else "gradient",
        loss=_read(window.losses[-1][1]) if window.losses else window.loss,
        grad_norm=_read(window.norm), lr=core.state.lrs(), scale=core.state.scale(),
        message=f"the {what} {failure.value:.4g} is far above what is usual",
    )  # fmt: skip
    return Incident(
        id=new_incident_id(event.step), event=event, history=core.records(),
        location=Location(method="none", note="a spike of finite values: nothing to trace"),
        environment=environment(), created=now(),
        action=Action(kind="skipped", detail="the step was not applied"),
    )  # fmt: skip


def _read(value: Tensor | None) -> float | None:
    return float(value.detach()) if value is not None and value.numel() == 1 else None
