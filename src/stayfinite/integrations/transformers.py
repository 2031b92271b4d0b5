"""The transformers Trainer: one callback.

from stayfinite.integrations.transformers import StayfiniteCallback

trainer = Trainer(..., callbacks=[StayfiniteCallback()])
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from ..config import Settings
from ..patches.manager import Subscribers, Target, subscribe
from ..records import Incident
from ..recover.policy import Policy
from .session import Session

__all__ = ["StayfiniteCallback"]

_REASON = "a Trainer with a StayfiniteCallback is protected until `train` is left, in whatever way"


class StayfiniteCallback(TrainerCallback):
    """Protects `trainer.train()`: a bad step is left out and explained, whatever the logs filter away.

    `incidents` has what was found. Under `stayfinite run` the run does the work, and reports once.
    """

    def __init__(
        self,
        policy: str | Policy = "skip",
        run_dir: str | Path | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
    ) -> None:
        self._session = Session(policy, run_dir, settings)
        self._follow_train()

    def _follow_train(self) -> None:
        """Patch `train`, because no callback is called if it raises."""
        target = Target(Trainer, "train", _REASON, "integrations")
        subscription = subscribe(target, _train, weakref.ref(self))
        weakref.finalize(self, subscription.close)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._follow_train()

    @property
    def incidents(self) -> list[Incident]:
        """Every incident so far, oldest first."""
        return self._session.incidents


def _train(original: Any, subscribers: Subscribers) -> Any:
    def train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        mine = [s() for s in subscribers]
        given = [c for c in trainer.callback_handler.callbacks if any(c is m for m in mine)]
        sessions = [c._session for c in given]
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        known = [] if optimizer is None else [optimizer]
        for session in sessions:
            session.open(type(trainer).__name__, known, sys._getframe(1))
        error = None
        try:
            return original(trainer, *args, **kwargs)
        except BaseException as e:
            error = e
            raise
        finally:
            for session in sessions:
                session.close(error)

    return train
