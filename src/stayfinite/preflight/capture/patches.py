"""The patches of a checked script, and their listener.

The runtime's patches (`patches.training`, `patches.loaders`) are reused; the few below are needed only to give probes to a loop.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from ...patches import provenance
from ...patches.firewall import Firewall
from ...patches.loaders import LoaderPatches
from ...patches.manager import Subscribers, Subscription, Target, subscribe
from ...patches.training import TrainingPatches
from .loop import Captor

__all__ = ["CapturePatches"]

_SWITCH = "check"
_EPOCH = "another epoch over a loader is noted when it begins"
_SCHEDULE = "a schedule does not move in a step that is only tried"
_AVERAGE = "an average of the weights does not move in a step that is only tried"
_CLIP = "the norm that the loop clips to is noted"
_CALL = "a loop without a loader is probed by what its model is called with"


class CapturePatches:
    """All patches in the process of a checked script; `close` removes them."""

    def __init__(self, captor: Captor) -> None:
        self.captor = captor
        provenance.install()  # it knows the loader of an iterator
        listener = _Listener(captor)
        self._training = TrainingPatches(listener, finds_optimizers=True)
        self._loaders = LoaderPatches(listener)
        self._subscriptions: list[Subscription] = []
        self._schedulers: set[type] = set()
        self._add(DataLoader, "__iter__", _EPOCH, _iter)
        self._add(AveragedModel, "update_parameters", _AVERAGE, _update_parameters)
        self._add(nn.utils.clip_grad, "clip_grad_norm_", _CLIP, _clip)
        listener.on_optimizer_made = self._loaders.find_others
        listener.on_scheduler_made = self._watch_scheduler
        captor.on_loaderless = lambda: self._add(nn.Module, "__call__", _CALL, _call)

    def _add(self, owner: Any, name: str, reason: str, make: Any) -> None:
        target = Target(owner, name, reason, _SWITCH)
        self._subscriptions.append(subscribe(target, make, self.captor))

    def _watch_scheduler(self, scheduler: Any) -> None:
        for cls in type(scheduler).__mro__:
            if "step" in cls.__dict__ and cls not in self._schedulers:
                self._schedulers.add(cls)
                self._add(cls, "step", _SCHEDULE, _scheduler_step)

    def close(self) -> None:
        """Restore all originals."""
        while self._subscriptions:
            self._subscriptions.pop().close()
        self._loaders.close()
        self._training.close()
        provenance.remove()


class _Seen(Firewall):
    """Lets an error of our own end the process of a check, because no training is at stake."""

    def fail(self, error: Exception) -> None:
        raise error


class _Listener:
    """The captor as a listener of the runtime's patches."""

    is_replaying = True
    ordinary = None
    wants_gradients = False
    seed = None

    def __init__(self, captor: Captor) -> None:
        self._captor = captor
        self.firewall = _Seen("check")
        self.on_optimizer_made: Callable[[], None] = lambda: None
        self.on_scheduler_made: Callable[[Any], None] = lambda scheduler: None

    @property
    def thread_id(self) -> int:
        """A script may train in any of its threads."""
        return threading.get_ident()

    def before_batch(self, loader: Any) -> None: ...

    def draw(self, loader: Any, draw: Callable[[], Any]) -> Any:
        return self._captor.draw(loader, draw)

    def takes_batch(self, loader: Any, batch: Any, indices: Any) -> bool:
        return True

    def on_loader_start(self, loader: Any) -> None: ...

    def on_loader_end(self, loader: Any) -> None:
        self._captor.on_loader_end(loader)

    def before_backward(self, loss: Tensor) -> bool | None:
        return None

    def after_backward(self) -> None: ...

    def replay_backward(
        self, loss: Tensor, call: Callable[[], Any], keeping: Callable[[], Any]
    ) -> Any:
        return self._captor.on_backward(loss, call)

    def on_clip(self, norm: Tensor) -> None: ...

    def on_optimizer(self, optimizer: Any) -> None:
        self.on_optimizer_made()
        self._captor.on_optimizer(optimizer)

    def on_scheduler(self, scheduler: Any) -> None:
        self.on_scheduler_made(scheduler)
        self._captor.on_scheduler(scheduler)

    def owns(self, optimizer: Any) -> bool:
        return True

    def may_step(self, optimizer: Any) -> bool:
        return True

    def undo_unless_fine(self, optimizer: Any) -> None: ...

    def before_replayed_step(self, optimizer: Any) -> None: ...

    def after_replayed_step(self, optimizer: Any) -> None: ...

    def on_step_done(self, optimizer: Any, is_done: bool) -> None: ...

    def special_step(self, optimizer: Any, closure: Any, call: Callable[[Any], Any]) -> Any:
        return self._captor.on_optimizer_step(optimizer, closure, call)

    def on_foreign_step(self) -> None: ...

    def on_step_elsewhere(self, optimizer: Any) -> None: ...

    def has_batch(self) -> bool:
        return True

    def before_scale(self) -> None:
        """Does nothing: a check restores the state itself."""

    def on_scale(self, scaler: Any, raw: Tensor, scaled: Tensor) -> None:
        self._captor.on_scale(scaler, raw, scaled)

    def on_scaler_step(self, scaler: Any, optimizer: Any, was_stepped: bool) -> None:
        if was_stepped:
            self._captor.before_scaler_step()


def _iter(original: Any, subscribers: Subscribers) -> Any:
    def __iter__(loader: Any) -> Any:
        for captor in subscribers:
            captor.on_iterator(loader)
        return original(loader)

    return __iter__


def _scheduler_step(original: Any, subscribers: Subscribers) -> Any:
    def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        def call() -> Any:
            return original(scheduler, *args, **kwargs)

        for captor in subscribers:
            return captor.on_scheduler_step(scheduler, call)
        return call()

    return step


def _update_parameters(original: Any, subscribers: Subscribers) -> Any:
    def update_parameters(average: Any, model: Any) -> Any:
        if all(captor.moves for captor in subscribers):
            return original(average, model)
        return None

    return update_parameters


def _clip(original: Any, subscribers: Subscribers) -> Any:
    def clip_grad_norm_(parameters: Any, max_norm: Any, *args: Any, **kwargs: Any) -> Any:
        for captor in subscribers:
            with contextlib.suppress(TypeError, ValueError):
                captor.clip_norm = float(max_norm)
        return original(parameters, max_norm, *args, **kwargs)

    return clip_grad_norm_


def _call(original: Any, subscribers: Subscribers) -> Any:
    def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            for captor in subscribers:
                args, kwargs = captor.on_model_call(module, args, kwargs)
        return original(module, *args, **kwargs)

    return __call__
