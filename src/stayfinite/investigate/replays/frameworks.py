"""Replays through a framework's own step, without its other effects."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import nn

from ...patches.manager import Subscribers, Target, subscribe
from ...runtime.undo import attributes

__all__ = ["FrameworkStep", "framework_step", "unlogged"]

_TRAINER = "transformers.trainer"
_AUTOMATIC, _MANUAL = (
    tuple(
        f"{package}.loops.optimization.{kind}"
        for package in ("lightning.pytorch", "pytorch_lightning")
    )
    for kind in ("automatic", "manual")
)
_HOMES = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")
_OPTIMIZERS = ("lightning.pytorch.core.optimizer", "pytorch_lightning.core.optimizer")
_REASON = "a replayed training_step logs nothing"


@dataclass(frozen=True)
class FrameworkStep:
    """A function that a framework calls with a batch, and that can be called again."""

    compute: Callable[[Any], Any]
    """Returns the loss of a batch from the loader; None if it runs the backward itself."""
    model: nn.Module
    owner: Any = None
    """The object whose method it is, if that is not the model. Its attributes and those of the model
    (`self.outputs.append(…)`) are restored.
    """
    makes_backward: bool = False

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the attributes of the owner and of every module."""
        parts = [*self.model.modules(), *([self.owner] if self.owner is not None else [])]
        undos = [attributes(part, stop=())() for part in parts]
        trained = [(p, p.requires_grad) for p in self.model.parameters()]
        try:
            yield
        finally:
            for undo in undos:
                undo()
            for parameter, requires_grad in trained:
                parameter.requires_grad_(requires_grad)


def framework_step(frame: FrameType | None) -> FrameworkStep | None:
    """The step of the Trainer (of Lightning or transformers) on this stack."""
    kind = getattr(sys.modules.get(_TRAINER), "Trainer", None)
    while frame is not None:
        home = frame.f_globals.get("__name__")
        if home == _TRAINER and isinstance(kind, type):
            trainer = frame.f_locals.get("self")
            if isinstance(trainer, kind):
                return _trainer_step(trainer, frame)
        elif home in _AUTOMATIC + _MANUAL and frame.f_code.co_name == "run":
            return _lightning_step(frame, home in _MANUAL)
        frame = frame.f_back
    return None


def _lightning_step(frame: FrameType, is_manual: bool) -> FrameworkStep:
    """`training_step`; not its closure, which counts steps and calls the hooks of all callbacks."""
    trainer, given = frame.f_locals["self"].trainer, dict(frame.f_locals["kwargs"])

    def compute(batch: Any) -> Any:
        batch = trainer.precision_plugin.convert_input(batch)
        batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        made = trainer.strategy.training_step(*{**given, "batch": batch}.values())
        return made["loss"] if isinstance(made, Mapping) else made

    return FrameworkStep(compute, trainer.lightning_module, makes_backward=is_manual)


def _trainer_step(trainer: Any, frame: FrameType) -> FrameworkStep:
    given = {n: frame.f_locals[n] for n in ("num_items_in_batch",) if n in frame.f_locals}

    def compute(batch: Any) -> Any:
        inputs = trainer._prepare_inputs(dict(batch))
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(trainer.model_wrapped, inputs, **given)
        return loss.mean() if loss.dim() else loss

    return FrameworkStep(compute, trainer.model_wrapped, trainer)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Disable `log` of Lightning modules and of the transformers Trainer in this thread, and Lightning's step counter in its
    optimizer wrapper.
    """
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
        for home in _OPTIMIZERS:
            cls = getattr(sys.modules.get(home), "LightningOptimizer", None)
            if cls is not None:
                target = Target(cls, "step", _REASON, "sandbox")
                stack.enter_context(subscribe(target, _uncounted, threading.get_ident()))
        yield


def _muted(original: Any, subscribers: Subscribers) -> Any:
    def log(module: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() in subscribers:
            return None
        return original(module, *args, **kwargs)

    return log


def _uncounted(original: Any, subscribers: Subscribers) -> Any:
    def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() in subscribers:
            return optimizer._optimizer.step(*args, **kwargs)
        return original(optimizer, *args, **kwargs)

    return step
