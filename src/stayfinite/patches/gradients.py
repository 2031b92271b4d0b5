"""Observes gradients that are returned as values: `torch.autograd.grad`, `torch.func.grad`, `grad_and_value`.

Only trainings without a torch optimizer are observed. In all others such gradients are part of a loss (a gradient penalty,
a physical equation), which is checked at its backward.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._functorch import eager_transforms

from .firewall import Firewall
from .manager import Subscribers, Subscription, Target, close_all, subscribe

__all__ = ["GradientListener", "GradientPatches"]

_ident = threading.get_ident
_is_compiling = torch.compiler.is_compiling
_REASON = "loss and gradients of a training without a torch optimizer are looked at"


class GradientListener(Protocol):
    """Receives the gradients that a script applies itself."""

    @property
    def thread_id(self) -> int: ...

    @property
    def is_replaying(self) -> bool: ...

    @property
    def firewall(self) -> Firewall: ...

    @property
    def wants_gradients(self) -> bool:
        """Whether there is no torch optimizer so far."""

    def before_grad(self, loss: Tensor, inputs: Sequence[Any]) -> None: ...

    def after_grad(self, grads: Sequence[Any]) -> None: ...

    def replay_grad(self, loss: Tensor, call: Callable[[], Any]) -> Any: ...

    def on_func_grad(
        self, given: Any, results: tuple[Any, Any], call: Callable[[], tuple[Any, Any]]
    ) -> None: ...


class GradientPatches:
    """The patches of one listener; `close` removes them."""

    def __init__(self, listener: GradientListener) -> None:
        self.listener = listener
        wanted: list[tuple[Any, str, Any]] = [
            (torch.autograd, "grad", _grad),
            (eager_transforms, "grad_and_value_impl", _func_grad),
        ]
        self._subscriptions: list[Subscription] = [
            subscribe(Target(owner, name, _REASON, "training"), make, self)
            for owner, name, make in wanted
        ]

    def close(self) -> None:
        """The originals are restored when the last listener is removed."""
        close_all(self._subscriptions)


def _is_inside() -> bool:
    """Whether a transform of torch.func is running, so that tensors are wrapped."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _here(subscribers: Subscribers) -> GradientListener | None:
    """The listener of this thread that wants the gradients, if any."""
    me = _ident()
    for each in subscribers.now:
        listener: GradientListener = each.listener
        if listener.thread_id == me and (listener.is_replaying or listener.wants_gradients):
            return listener
    return None


def _grad(original: Any, subscribers: Subscribers) -> Any:
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        listener = None if _is_compiling() or _is_inside() else _here(subscribers)
        # Inspecting a generator would consume it.
        first = outputs[0] if isinstance(outputs, (list, tuple)) and outputs else outputs
        if listener is None or not isinstance(first, Tensor):
            return original(outputs, inputs, *args, **kwargs)
        if listener.is_replaying:
            return listener.replay_grad(first, lambda: original(outputs, inputs, *args, **kwargs))
        given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        listener.firewall.call(listener.before_grad, first, given)
        grads = original(outputs, given, *args, **kwargs)
        listener.firewall.call(listener.after_grad, grads)
        return grads

    return grad


def _func_grad(original: Any, subscribers: Subscribers) -> Any:
    def grad_and_value_impl(func: Any, argnums: Any, has_aux: Any, args: Any, kwargs: Any) -> Any:
        results = original(func, argnums, has_aux, args, kwargs)
        listener = None if _is_compiling() or _is_inside() else _here(subscribers)
        if listener is None or listener.is_replaying:
            return results
        chosen = [argnums] if isinstance(argnums, int) else list(argnums)
        given = [args[i] for i in chosen]
        listener.firewall.call(
            listener.on_func_grad,
            given,
            results,
            lambda: original(func, argnums, has_aux, args, kwargs),
        )
        return results

    return grad_and_value_impl
