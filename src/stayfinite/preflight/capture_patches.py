"""Thin wrappers round the calls that every PyTorch training makes, while somebody listens.

Each wrapper hands the call to the listener, which makes it (or does not). Without a listener the
original runs untouched. `Wires.close` puts every original back.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from .labels import without_labels

__all__ = ["Listener", "Wires"]


_INF = float("inf")
_LOADERS_AROUND_LOADERS = (
    ("accelerate.data_loader", "DataLoaderShard"),
    ("accelerate.data_loader", "DataLoaderDispatcher"),
)


class Listener:
    """What a driver of a loop is told and asked; as it stands it lets everything happen."""

    def stream(self, owner: Any, inner: Iterator[Any]) -> Iterator[Any]:
        """The batches that the loop gets instead of this loader's."""
        return inner

    def before_backward(self, loss: Tensor) -> bool:
        """True: go on, there is nothing special about it. False: `on_backward` makes the call."""
        return False

    def on_backward(self, loss: Tensor, call: Callable[[], Any]) -> Any:
        return call()

    def on_clip(self, norm: Tensor) -> None:
        """The loop has clipped its gradients; this was their norm."""

    def on_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer was made."""

    def before_step(self, optimizer: Optimizer) -> bool:
        """True: go on. False: `on_optimizer_step` makes the call, or does not."""
        return False

    def step_raised(self) -> None:
        """A step that `before_step` let go raised."""

    def on_optimizer_step(
        self, optimizer: Optimizer, closure: Any, call: Callable[[Any], Any]
    ) -> Any:
        return call(closure)

    def on_scheduler(self, scheduler: Any) -> None:
        """A scheduler was made."""

    def on_scheduler_step(self, scheduler: Any, call: Callable[[], Any]) -> Any:
        return call()

    def on_average(self, call: Callable[[], Any]) -> Any:
        return call()

    def on_scale(self, scaler: Any, raw: Tensor, scaled: Tensor) -> None:
        """A loss was scaled."""

    def on_scaler_step(self, scaler: Any, optimizer: Optimizer, call: Callable[[], Any]) -> Any:
        return call()

    def on_own_check(self, value: Tensor) -> None:
        """The loop itself looks whether this number is finite."""


class Wires:
    """Installed once per listener; reentrant calls inside a wrapper go to the original."""

    def __init__(self, listener: Listener, with_loaders: bool) -> None:
        self.listener = listener
        self._undo: list[Callable[[], None]] = []
        self._in_step = 0
        self._in_backward = False
        self._fetching = 0
        self._patch(torch.autograd, "backward", self._backward)
        self._patch_clip()
        self._patch(Optimizer, "__init__", self._optimizer_init)
        self._patch(Optimizer, "zero_grad", self._zero_grad)
        self._patch(LRScheduler, "__init__", self._scheduler_init)
        for cls in _all_schedulers():
            self._patch(cls, "step", self._scheduler_step)
        self._patch(AveragedModel, "update_parameters", self._average_update)
        self._patch(torch.amp.GradScaler, "scale", self._scaler_scale)
        self._patch(torch.amp.GradScaler, "step", self._scaler_step)
        for name in ("isnan", "isinf", "isfinite"):
            self._patch(torch, name, self._own_check)
            self._patch(Tensor, name, self._own_check)
        for name in ("item", "__float__"):
            self._patch(Tensor, name, self._own_look)
        if with_loaders:
            self._patch(DataLoader, "__iter__", self._loader_iter)
            self._patch(DataLoader, "__init__", self._loader_init)
            self._patch(itertools, "cycle", self._cycle)

    def close(self) -> None:
        """Put every original back, last patch first."""
        while self._undo:
            self._undo.pop()()

    def _patch(self, home: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = home.__dict__.get(name) or getattr(home, name)
        is_own = name in home.__dict__
        wrapper = make(original)
        functools.update_wrapper(
            wrapper, original, updated=() if isinstance(wrapper, type) else ("__dict__",)
        )
        wrapper.__stayfinite__ = self
        setattr(home, name, wrapper)

        def undo() -> None:
            if is_own:
                setattr(home, name, original)
            else:
                delattr(home, name)

        self._undo.append(undo)

    # -- backward ------------------------------------------------------------------------------

    def _backward(self, original: Any) -> Any:
        """`Tensor.backward` ends here as well."""

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            listener = self.listener
            if self._in_backward:
                return original(tensors, *args, **kwargs)
            self._in_backward = True
            try:
                first = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
                if not isinstance(first, Tensor) or listener.before_backward(first):
                    return original(tensors, *args, **kwargs)
                return listener.on_backward(first, lambda: original(tensors, *args, **kwargs))
            finally:
                self._in_backward = False

        return backward

    def _patch_clip(self) -> None:
        def make(original: Any) -> Any:
            def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
                norm = original(*args, **kwargs)
                kind = kwargs.get("norm_type", args[2] if len(args) > 2 else 2.0)
                if isinstance(norm, Tensor) and kind:
                    self.listener.on_clip(norm)
                return norm

            return clip_grad_norm_

        from torch.nn.utils import clip_grad

        self._patch(clip_grad, "clip_grad_norm_", make)
        self._patch(nn.utils, "clip_grad_norm_", lambda _: clip_grad.clip_grad_norm_)

    # -- optimizers, schedulers, scalers ----------------------------------------------------------

    def watch_optimizer(self, optimizer: Optimizer) -> None:
        """Take over `step` of this optimizer's class, or its own where a scheduler put one there."""
        own = vars(optimizer).get("step")
        if own is not None and not hasattr(own, "__stayfinite__"):
            # A scheduler made before us holds on to the class's original.
            self._patch(
                optimizer,
                "step",
                lambda original: functools.partial(
                    self._optimizer_step(lambda _, *a, **k: original(*a, **k)), optimizer
                ),
            )
            return
        cls = next((c for c in type(optimizer).__mro__ if "step" in c.__dict__), None)
        if cls is None or cls is Optimizer or hasattr(cls.__dict__["step"], "__stayfinite__"):
            return
        self._patch(cls, "step", self._optimizer_step)

    def _optimizer_init(self, original: Any) -> Any:
        def __init__(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self.watch_optimizer(optimizer)
            self.listener.on_optimizer(optimizer)

        return __init__

    def _optimizer_step(self, original: Any) -> Any:
        def step(optimizer: Optimizer, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self._in_step:
                return original(optimizer, closure, *args, **kwargs)
            if closure is None and self.listener.before_step(optimizer):
                self._in_step += 1
                try:
                    return without_labels(original, optimizer, *args, **kwargs)
                except BaseException:
                    self.listener.step_raised()
                    raise
                finally:
                    self._in_step -= 1

            def call(actual: Any) -> Any:
                self._in_step += 1
                try:
                    if actual is None:
                        return without_labels(original, optimizer, *args, **kwargs)
                    return original(optimizer, actual, *args, **kwargs)
                finally:
                    self._in_step -= 1

            return self.listener.on_optimizer_step(optimizer, closure, call)

        step.hooked = True  # type: ignore[attr-defined]  # what torch.optim marks its own wrapper with
        return step

    def _zero_grad(self, original: Any) -> Any:
        def zero_grad(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            return without_labels(original, optimizer, *args, **kwargs)

        return zero_grad

    def _scheduler_init(self, original: Any) -> Any:
        def __init__(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            original(scheduler, *args, **kwargs)
            self.listener.on_scheduler(scheduler)

        return __init__

    def _scheduler_step(self, original: Any) -> Any:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            return self.listener.on_scheduler_step(
                scheduler, lambda: original(scheduler, *args, **kwargs)
            )

        return step

    def _average_update(self, original: Any) -> Any:
        def update_parameters(average: Any, model: Any) -> Any:
            return self.listener.on_average(lambda: original(average, model))

        return update_parameters

    def _scaler_scale(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if isinstance(outputs, Tensor):
                self.listener.on_scale(scaler, outputs, scaled)
            return scaled

        return scale

    def _scaler_step(self, original: Any) -> Any:
        def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            return self.listener.on_scaler_step(
                scaler, optimizer, lambda: original(scaler, optimizer, *args, **kwargs)
            )

        return step

    def _own_check(self, original: Any) -> Any:
        def check(value: Any, *args: Any, **kwargs: Any) -> Any:
            is_number = isinstance(value, Tensor) and value.dim() == 0
            if is_number and value.is_floating_point() and not self._in_backward:
                self.listener.on_own_check(value)
            return original(value, *args, **kwargs)

        return check

    def _own_look(self, original: Any) -> Any:
        def look(value: Tensor) -> Any:
            number = original(value)
            if (number != number or number in (_INF, -_INF)) and not self._in_backward:
                self.listener.on_own_check(value)
            return number

        return look

    # -- loaders -----------------------------------------------------------------------------------

    def _loader_iter(self, original: Any) -> Any:
        def __iter__(loader: Any) -> Any:
            if self._fetching:
                return original(loader)  # somebody else's loader iterates this one
            return self._outermost(loader, original)

        return __iter__

    def _loader_init(self, original: Any) -> Any:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            self._watch_loader_class(type(loader))
            for module, name in _LOADERS_AROUND_LOADERS:
                around = getattr(sys.modules.get(module), name, None)
                if around is not None:
                    self._watch_loader_class(around)

        return __init__

    def _watch_loader_class(self, cls: type) -> None:
        """A class that iterates by itself and looks ahead is watched where the loop meets it."""
        home = next((c for c in cls.__mro__ if "__iter__" in c.__dict__), None)
        if home is not None and not hasattr(home.__dict__["__iter__"], "__stayfinite__"):
            self._patch(home, "__iter__", self._loader_iter)

    def _cycle(self, original: Any) -> Any:
        """`itertools.cycle(loader)` asks the loader once and then gives what it has kept; the loop
        gets those batches from the stream as well."""

        class cycle(original):  # type: ignore[misc]  # still a type, as scripts know it
            def __new__(cls, iterable: Any) -> Any:
                is_loader = hasattr(getattr(type(iterable), "__iter__", None), "__stayfinite__")
                if is_loader and cls is cycle:
                    return self._outermost(iterable, original)
                return original.__new__(cls, iterable)

        return cycle

    def _outermost(self, loader: Any, original: Any) -> Iterator[Any]:
        """The stream over a loader; a second wrapper for the same loader underneath is passed by."""

        # The iterator is made now, as in the plain run: making it draws a random number.
        self._fetching += 1
        try:
            iterator = iter(original(loader))
        finally:
            self._fetching -= 1

        def inner() -> Iterator[Any]:
            while True:
                self._fetching += 1
                try:
                    item = without_labels(next, iterator)
                except StopIteration:
                    return
                finally:
                    self._fetching -= 1
                yield item

        return self.listener.stream(loader, inner())


def _all_schedulers() -> list[type]:
    """The scheduler classes that define `step` themselves."""
    found: list[type] = []
    todo: list[type] = [LRScheduler]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if "step" in cls.__dict__ and cls not in found:
            found.append(cls)
    return found
