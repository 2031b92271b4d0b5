"""A framework's own step: the function that computes its loss, and what it does besides, kept still."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torch import Tensor

from ..patches.manager import Subscribers, Target, subscribe

__all__ = ["loss_function", "unlogged"]

_TRAINER = "transformers.trainer"
_HOMES = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")
_REASON = "a replayed training_step logs nothing"


def loss_function(frame: FrameType | None) -> Callable[[Any], Tensor] | None:
    """How the transformers Trainer that is at work on this stack computes the loss of a batch."""
    kind = getattr(sys.modules.get(_TRAINER), "Trainer", None)
    while frame is not None and isinstance(kind, type):
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, kind) and frame.f_globals.get("__name__") == _TRAINER:
            given = {n: frame.f_locals[n] for n in ("num_items_in_batch",) if n in frame.f_locals}
            return lambda batch: _trainer_loss(trainer, batch, given)
        frame = frame.f_back
    return None


def _trainer_loss(trainer: Any, batch: Any, given: dict[str, Any]) -> Tensor:
    inputs = trainer._prepare_inputs(dict(batch))
    with trainer.compute_loss_context_manager():
        loss = trainer.compute_loss(trainer.model_wrapped, inputs, **given)
    found: Tensor = loss.mean() if loss.dim() else loss
    return found


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """`log` of Lightning modules and of the transformers Trainer does nothing in this thread."""
    with contextlib.ExitStack() as stack:
        trainer = getattr(sys.modules.get(_TRAINER), "Trainer", None)
        if trainer is not None:
            target = Target(trainer, "log", _REASON, "sandbox")
            stack.enter_context(subscribe(target, _muted, threading.get_ident()))
        for home in _HOMES:
            cls = getattr(sys.modules.get(home), "LightningModule", None)
            for name in ("log", "log_dict") if cls is not None else ():
                target = Target(cls, name, _REASON, "sandbox")
                stack.enter_context(subscribe(target, _muted, threading.get_ident()))
        yield


def _muted(original: Any, subscribers: Subscribers) -> Any:
    def log(module: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() in subscribers:
            return None
        return original(module, *args, **kwargs)

    return log
