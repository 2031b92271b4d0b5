"""What an incident says about when and where it happened."""

from __future__ import annotations

import platform
import sys
import uuid
from datetime import datetime, timezone

import torch

__all__ = ["environment", "new_incident_id", "now"]


def new_incident_id(step: int) -> str:
    return f"step{step:06d}-{uuid.uuid4().hex[:6]}"


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def environment() -> dict[str, str]:
    """What a reader of the incident needs to know of the machine."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.system().lower(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
    for name in ("lightning", "transformers", "accelerate"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(getattr(module, "__version__", "?"))
    return found
