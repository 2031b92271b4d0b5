"""stayfinite keeps a PyTorch training run finite.

    from stayfinite import Guard

    guard = Guard(model, optimizer)
    for batch in guard(loader):      # an existing loop, otherwise unchanged
        ...

The names below load on first use: importing the package itself imports neither torch nor rich.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Settings
    from .errors import BudgetExceededError, NonFiniteError, StayfiniteError, UsageError
    from .guard import Guard, Outcome
    from .records import Diagnosis, Event, Incident, Location
    from .recover.policy import Policy

__version__ = "0.1.0"

__all__ = [
    "BudgetExceededError",
    "Diagnosis",
    "Event",
    "Guard",
    "Incident",
    "Location",
    "NonFiniteError",
    "Outcome",
    "Policy",
    "Settings",
    "StayfiniteError",
    "UsageError",
    "__version__",
]

_HOME = {
    "BudgetExceededError": "errors",
    "Diagnosis": "records",
    "Event": "records",
    "Guard": "guard",
    "Incident": "records",
    "Location": "records",
    "NonFiniteError": "errors",
    "Outcome": "guard",
    "Policy": "recover.policy",
    "Settings": "config",
    "StayfiniteError": "errors",
    "UsageError": "errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module 'stayfinite' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
