"""Accelerate: two lines.

from stayfinite.integrations.accelerate import protect

protect(accelerator)
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.accelerator import Accelerator

from ..config import Settings
from ..patches.manager import Subscribers, Target, subscribe
from ..recover.policy import Policy
from .protection import Protection
from .session import Session

__all__ = ["protect"]

_REASON = "the protection ends with the training, and its incidents are in the trackers"


def protect(
    accelerator: Accelerator,
    policy: str | Policy = "skip",
    run_dir: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
) -> Protection:
    """Protect a training from this line on, before or after `accelerator.prepare`.

    It ends with `accelerator.end_training()`, with the program, or with `close()`; it is also a
    context manager. The number of incidents goes to the accelerator's trackers when it ends.
    """
    session = Session(policy, run_dir, settings)
    known = [getattr(o, "optimizer", o) for o in accelerator._optimizers]
    made = Protection(session, "accelerate", sys._getframe(1), accelerator, known)
    target = Target(type(accelerator), "end_training", _REASON, "integrations")
    made.also_close(subscribe(target, _end_training, (weakref.ref(accelerator), made)))
    return made


def _end_training(original: Any, subscribers: Subscribers) -> Any:
    def end_training(accelerator: Any, *args: Any, **kwargs: Any) -> Any:
        for owner, protection in subscribers:
            if owner() is accelerator:
                protection.close()
                count = len(protection.incidents)
                if count and accelerator.trackers:
                    accelerator.log({"stayfinite/incidents": count})
        return original(accelerator, *args, **kwargs)

    return end_training
