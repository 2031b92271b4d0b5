"""Creates incidents: id, time, environment."""

from __future__ import annotations

import platform
import sys
import uuid
from datetime import datetime, timezone

import torch

from ..records import Action, Diagnosis, Event, Incident, Location, StepRecord

__all__ = ["environment", "new_incident"]


def new_incident(
    event: Event,
    *,
    action: Action,
    history: tuple[StepRecord, ...] = (),
    location: Location | None = None,
    diagnosis: Diagnosis | None = None,
) -> Incident:
    """Make an incident, with an id, the time and the environment."""
    return Incident(
        id=f"step{event.step:06d}-{uuid.uuid4().hex[:6]}",
        event=event,
        location=location or Location(method="none"),
        diagnosis=diagnosis or Diagnosis(),
        action=action,
        history=history,
        environment=environment(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def environment() -> dict[str, str]:
    """Versions and device, for the readers of an incident."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.system().lower(),
        "device": _device_name(),
    }
    for name in ("lightning", "transformers", "accelerate"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(getattr(module, "__version__", "?"))
    return found


def _device_name() -> str:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return "cpu"
    module = getattr(torch, accelerator.type, None)
    name = getattr(module, "get_device_name", None)
    return str(name()) if name is not None else accelerator.type
