"""Patches the calls that every PyTorch training makes, and notifies the listeners.

Each wrapper calls the listeners of the current thread. In other threads, and during compilation, it calls the original
directly. An error of a listener never reaches the training: it is reported once, the listener is closed, and the original is
called.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    LRScheduler,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..errors import StayfiniteError
from ..putting_back import put_back
from .compiled import skip_our_code
from .grad_scaler import on_scale, on_step
from .listeners import TrainingListener
from .manager import Subscribers, Subscription, Target, close_all, original_of, subscribe

__all__ = ["TrainingPatches", "seeded"]

_ident = threading.get_ident
_is_compiling = torch.compiler.is_compiling


_stepping: set[int] = set()
"""The threads that are inside an optimizer's step."""


class TrainingPatches:
    """The patches of one listener; `close` removes them."""

    def __init__(self, listener: TrainingListener, finds_optimizers: bool) -> None:
        self.listener = listener
        self._subscriptions: list[Subscription] = []
        self._classes: set[type] = set()
        self._hooks: list[Any] = []
        self._under_way: list[tuple[Any, Callable[[], None] | None]] = []
        """Steps that hooks have begun, each with its undo function."""
        self._is_nested = False
        """The current step calls the step of its base class, which has the same hooks."""
        try:
            self._subscribe(finds_optimizers)
        except BaseException:
            self.close()
            raise

    def _subscribe(self, finds_optimizers: bool) -> None:
        skip_our_code()
        self._add(torch.autograd, "backward", _LOSS, _backward)
        self._add(nn.utils.clip_grad, "clip_grad_norm_", _NORM, _clip)
        self._add(nn.utils, "clip_grad_norm_", _NORM, _same_clip)
        self._add(torch.amp.GradScaler, "scale", _LOSS, on_scale)
        self._add(torch.amp.GradScaler, "step", _STEP, on_step)
        if finds_optimizers:
            for name in ("__init__", "__setstate__"):
                self._add(Optimizer, name, _FIND, _new_optimizer)
            for cls in (LRScheduler, ReduceLROnPlateau, SequentialLR, ChainedScheduler):
                self._add(cls, "__init__", _FIND, _new_scheduler)

    def _add(self, owner: Any, name: str, reason: str, make: Any) -> None:
        target = Target(owner, name, reason, "training")
        self._subscriptions.append(subscribe(target, make, self))

    def watch_optimizer(self, optimizer: Any) -> None:
        """Patch `step` of this optimizer's class, which need not derive from torch.optim.Optimizer."""
        cls = next((c for c in type(optimizer).__mro__ if "step" in c.__dict__), None)
        if cls is None or cls in self._classes:
            return
        self._classes.add(cls)
        self._add(cls, "step", _STEP, _optimizer_step)
        if "step" in vars(optimizer) and not self._hooks:
            # A scheduler that was made before this patch calls the original directly, and only torch's
            # own hooks run then.
            self._hooks = [
                register_optimizer_step_pre_hook(self._before_original),
                register_optimizer_step_post_hook(self._after_original),
            ]

    def _before_original(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        listener = self.listener
        me = _ident()
        if _is_compiling() or me in _stepping or listener.thread_id != me:
            return
        if not listener.firewall.call(listener.owns, original_of(optimizer)) or callable(
            kwargs.get("closure")
        ):
            return
        if self._under_way and _is_inner(optimizer):
            self._is_nested = True
            return
        if listener.is_replaying:
            undo = listener.before_replayed_step(optimizer)
        else:
            self._under_way.clear()  # of a step that raised
            undo = listener.firewall.call(listener.undo_unless_fine, optimizer)
        self._under_way.append((optimizer, undo))

    def _after_original(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._under_way or self._under_way[-1][0] is not optimizer:
            return
        if self._is_nested and _is_inner(optimizer):
            return
        self._is_nested = False
        _, undo = self._under_way.pop()
        if undo is not None:
            self.listener.firewall.once(put_back, undo)
        elif self.listener.is_replaying:
            self.listener.after_replayed_step(optimizer)
        else:
            self.listener.firewall.call(self.listener.on_step_done, optimizer, True)

    def close(self) -> None:
        """The originals are restored when the last listener is removed."""
        put_back(lambda: close_all(self._subscriptions), *(h.remove for h in self._hooks))
        self._hooks.clear()
        self._classes.clear()


def _is_inner(optimizer: Any) -> bool:
    """Whether a hook was called by a `super().step()`: torch calls the hooks in the step of every class of which an
    optimizer was ever made. A step of a replay inside the loop's own step is not such a call.
    """
    frame = sys._getframe(2)
    caller, own = frame.f_code, TrainingPatches._before_original.__code__
    outer = frame.f_back
    while outer is not None and outer.f_code is not own:
        if outer.f_code is caller and outer.f_locals.get("self") is optimizer:
            return True
        outer = outer.f_back
    return False


_LOSS = "the loss is looked at when its backward begins"
_NORM = "the gradients' norm is taken over instead of being computed again"
_STEP = "a step whose loss or gradients are not finite is not applied"
_FIND = "an optimizer or scheduler is noted when it is made"


_BACKWARD = ("retain_graph", "create_graph", "grad_variables", "inputs")


def _keeping(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments after the gradients, with `retain_graph=True`."""
    return {**dict(zip(_BACKWARD, args[1:])), **kwargs, "retain_graph": True}


def _backward(original: Any, subscribers: Subscribers) -> Any:
    """`Tensor.backward` calls this as well."""

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return original(tensors, *args, **kwargs)
        me = _ident()
        for each in subscribers.now:
            listener = each.listener
            if listener.thread_id != me:
                continue
            ordinary, firewall = listener.ordinary, listener.firewall
            try:  # Not through `firewall.call`: this runs in every healthy step.
                is_on = ordinary is not None and not firewall.is_down
                if is_on and ordinary.takes_backward(tensors):
                    continue
            except StayfiniteError:
                raise
            except Exception as error:
                firewall.fail(error)
            first = tensors
            if not isinstance(first, Tensor):
                # Inspecting a generator would consume it.
                first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else None
                if not isinstance(first, Tensor):
                    continue
            if listener.is_replaying:
                plain = functools.partial(original, tensors, *args, **kwargs)
                keeping = functools.partial(original, tensors, *args[:1], **_keeping(args, kwargs))
                return listener.replay_backward(first, plain, keeping)
            if firewall.call(listener.before_backward, first):
                args, kwargs = args[:1], _keeping(args, kwargs)
            if listener.seed is not None:
                seed, listener.seed = listener.seed, None
                plain_call = (args, kwargs)
                args, kwargs = firewall.call(
                    seeded, seed, tensors, *plain_call, fallback=plain_call
                )
            if firewall.call(getattr, listener, "wants_gradients"):
                result = original(tensors, *args, **kwargs)
                listener.firewall.call(listener.after_backward)
                return result
        return original(tensors, *args, **kwargs)

    return backward


def _clip(original: Any, subscribers: Subscribers) -> Any:
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        norm = original(*args, **kwargs)
        if _is_compiling():
            return norm
        kind = kwargs.get("norm_type", args[2] if len(args) > 2 else 2.0)
        if isinstance(norm, Tensor) and kind:
            for each in subscribers.here():
                each.listener.firewall.call(each.listener.on_clip, norm)
        return norm

    return clip_grad_norm_


def _same_clip(original: Any, subscribers: Subscribers) -> Any:
    """`torch.nn.utils` has the same function under a second name."""

    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        return nn.utils.clip_grad.clip_grad_norm_(*args, **kwargs)

    return clip_grad_norm_


def _new_optimizer(original: Any, subscribers: Subscribers) -> Any:
    def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        for each in subscribers.here():
            each.listener.firewall.call(each.watch_optimizer, optimizer)
            each.listener.firewall.call(each.listener.on_optimizer, optimizer)

    return made


def _new_scheduler(original: Any, subscribers: Subscribers) -> Any:
    def __init__(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        original(scheduler, *args, **kwargs)
        for each in subscribers.here():
            each.listener.firewall.call(each.listener.on_scheduler, scheduler)

    return __init__


def _optimizer_step(original: Any, subscribers: Subscribers) -> Any:
    def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or (me := _ident()) in _stepping:
            return original(optimizer, *args, **kwargs)
        mine: Any = None
        may_step: bool | None = None
        now = subscribers.now
        if len(now) == 1 and not args and not kwargs:
            mine = now[0].listener
            ordinary, firewall = mine.ordinary, mine.firewall
            if ordinary is not None and not firewall.is_down and mine.thread_id == me:
                try:  # Not through `firewall.call`: this runs in every healthy step.
                    may_step = ordinary.may_step(optimizer)
                except StayfiniteError:
                    raise
                except Exception as error:
                    firewall.fail(error)
                    may_step = True  # as without listeners
        if may_step is None:
            mine = _whose(subscribers, optimizer)
            if mine is None:
                return original(optimizer, *args, **kwargs)
            closure = args[0] if args else kwargs.get("closure")
            if mine.is_replaying or callable(closure):
                return _special(mine, original, optimizer, closure, args, kwargs)
            may_step = mine.firewall.call(mine.may_step, optimizer, fallback=True)
        if not may_step:
            return None
        firewall = mine.firewall
        _stepping.add(me)
        is_done = False
        try:
            result = original(optimizer, *args, **kwargs)
            is_done = True
            return result
        finally:
            _stepping.discard(me)
            try:  # Not through `firewall.call`: this runs in every healthy step.
                if not firewall.is_down:
                    mine.on_step_done(optimizer, is_done)
            except StayfiniteError:
                raise
            except Exception as error:
                firewall.fail(error)

    return step


def _whose(subscribers: Subscribers, optimizer: Any) -> TrainingListener | None:
    """The listener that owns this step; the others are only notified."""
    me, mine = _ident(), None
    for each in subscribers.now:
        listener: TrainingListener = each.listener
        if listener.thread_id != me:
            listener.firewall.call(listener.on_step_elsewhere, optimizer)
            continue
        if listener.firewall.call(listener.owns, original_of(optimizer)):
            if mine is None:
                mine = listener
                continue
            if not mine.firewall.call(mine.has_batch) and listener.firewall.call(
                listener.has_batch
            ):
                mine, listener = listener, mine
        listener.firewall.call(listener.on_foreign_step)
    return mine


def _special(
    listener: TrainingListener,
    original: Any,
    optimizer: Any,
    closure: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a step that belongs to a replay or evaluates a closure."""

    def call(actual: Any) -> Any:
        given, named = args, kwargs
        if actual is not closure:
            given = (actual, *args[1:]) if args else args
            named = kwargs if args else {**kwargs, "closure": actual}
        me = _ident()
        was_inside = me in _stepping
        _stepping.add(me)
        try:
            return original(optimizer, *given, **named)
        finally:
            if not was_inside:
                _stepping.discard(me)

    return listener.special_step(optimizer, closure if callable(closure) else None, call)


def seeded(
    seed: Tensor, tensors: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments of `backward`, with the start gradient of the first tensor multiplied by this one."""
    given = args[0] if args else kwargs.get("grad_tensors")
    others = {name: value for name, value in kwargs.items() if name != "grad_tensors"}
    num = 1 if isinstance(tensors, Tensor) else len(tensors)
    parts: list[Any] = [None] * num
    if given is not None:
        parts = [given] if isinstance(given, Tensor) else list(given)
    parts[0] = seed if parts[0] is None else parts[0] * seed
    return (parts, *args[1:]), others
