"""Lightning: one callback for the Trainer, one call for Fabric.

from stayfinite.integrations.lightning import StayfiniteCallback

trainer = L.Trainer(callbacks=[StayfiniteCallback()])
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import Settings
from ..records import Incident
from ..recover.policy import Policy
from .protection import Protection
from .session import Session

__all__ = ["StayfiniteCallback", "protect"]


def _callback_class() -> type:
    """The base class of callbacks, from `lightning` or `pytorch_lightning`, whichever the training uses."""
    names = ("lightning.pytorch", "pytorch_lightning")
    name = next((n for n in names if n in sys.modules), None)
    for home in (name,) if name is not None else names:
        try:
            found: type = importlib.import_module(home).Callback
        except ImportError:
            continue
        return found
    raise ImportError("Lightning is not installed; `pip install 'stayfinite[lightning]'`")


_Callback: Any = _callback_class()


class StayfiniteCallback(_Callback):  # type: ignore[misc]
    """Protects `trainer.fit`: a bad step is left out, explained and counted in the trainer's loggers.

    `incidents` has what was found. Under `stayfinite run` the run does the work, and reports once.
    """

    def __init__(
        self,
        policy: str | Policy = "skip",
        run_dir: str | Path | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._session = Session(policy, run_dir, settings)
        self._num_logged = 0

    @property
    def incidents(self) -> list[Incident]:
        """Every incident so far, oldest first."""
        return self._session.incidents

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Called before the optimizers are made."""
        if stage == "fit":
            self._session.open(type(pl_module).__name__)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the number of incidents with the trainer's own loggers."""
        if self._session.num_incidents != self._num_logged:
            self._log(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.on_train_batch_end(trainer, pl_module, None, None, -1)

    def _log(self, trainer: Any) -> None:
        self._num_logged = self._session.num_incidents
        # The axis of `self.log`: with several optimizers `global_step` runs ahead of it.
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        for logger in trainer.loggers:
            logger.log_metrics({"stayfinite/incidents": self._num_logged}, step=step)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Remove all patches at the end of the training."""
        if stage == "fit":
            self._session.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Check whether a non-finite value ended the training."""
        self._session.close(exception)


def protect(
    fabric: Any = None,
    policy: str | Policy = "skip",
    run_dir: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
) -> Protection:
    """Protect a Fabric training from this line on, until `close()` or the end of the program.

        fabric = L.Fabric()
        protect(fabric)

    It is also a context manager: `with protect(fabric):`.
    """
    session = Session(policy, run_dir, settings)
    return Protection(session, "fabric", sys._getframe(1), owner=fabric)
