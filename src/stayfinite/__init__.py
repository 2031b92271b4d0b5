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
    from .errors import (
        BudgetExceededError,
        CheckpointError,
        NonFiniteError,
        StayfiniteError,
        UsageError,
    )
    from .guard import Guard, Outcome
    from .numerics.parts import PartTally, finite_mean, finite_sum
    from .records import Diagnosis, Event, Incident, Location
    from .recover.ledger import Ledger
    from .recover.plan import Stage, StagedPlan
    from .recover.policy import Policy, Rung
    from .recover.ramp import PrecisionRamp
    from .runtime.probes import probe
    from .runtime.saves.checkpoints import save_gate
    from .runtime.saves.resume import last_good, load_last_good
    from .runtime.warn.limits import watch

__version__ = "0.1.0"

__all__ = [
    "BudgetExceededError",
    "CheckpointError",
    "Diagnosis",
    "Event",
    "Guard",
    "Incident",
    "Ledger",
    "Location",
    "NonFiniteError",
    "Outcome",
    "PartTally",
    "Policy",
    "PrecisionRamp",
    "Rung",
    "Settings",
    "Stage",
    "StagedPlan",
    "StayfiniteError",
    "UsageError",
    "__version__",
    "finite_mean",
    "finite_sum",
    "last_good",
    "load_last_good",
    "probe",
    "save_gate",
    "watch",
]

_HOME = {
    "BudgetExceededError": "errors",
    "CheckpointError": "errors",
    "Diagnosis": "records",
    "Event": "records",
    "Guard": "guard",
    "Incident": "records",
    "Ledger": "recover.ledger",
    "Location": "records",
    "NonFiniteError": "errors",
    "Outcome": "guard",
    "PartTally": "numerics.parts",
    "Policy": "recover.policy",
    "PrecisionRamp": "recover.ramp",
    "Rung": "recover.policy",
    "Settings": "config",
    "Stage": "recover.plan",
    "StagedPlan": "recover.plan",
    "StayfiniteError": "errors",
    "UsageError": "errors",
    "finite_mean": "numerics.parts",
    "finite_sum": "numerics.parts",
    "last_good": "runtime.saves.resume",
    "load_ipython_extension": "integrations.notebook",
    "load_last_good": "runtime.saves.resume",
    "probe": "runtime.probes",
    "save_gate": "runtime.saves.checkpoints",
    "unload_ipython_extension": "integrations.notebook",
    "watch": "runtime.warn.limits",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module 'stayfinite' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
