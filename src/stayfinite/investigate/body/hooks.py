"""Hooks on objects that a replay does not copy: in a replay their copies are called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as modules

__all__ = ["hooks_of", "hooks_of_every_module", "replaced"]

Hooks = dict[Any, Any]


def hooks_of(parameter: Any) -> list[Hooks]:
    """The user's hooks on a parameter."""
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    with torch._C.DisableTorchFunctionSubclass():  # else the weight's own class is asked
        return [hooks for n in names if (hooks := getattr(parameter, n, None))]


def hooks_of_every_module() -> list[Hooks]:
    """Hooks that `register_module_forward_hook` and similar functions have set."""
    kinds = ("forward", "forward_pre", "backward", "backward_pre")
    return [hooks for k in kinds if (hooks := getattr(modules, f"_global_{k}_hooks", None))]


@contextlib.contextmanager
def replaced(found: list[Hooks], copy: Callable[[Any], Any]) -> Iterator[None]:
    """In this context, these have the copies of their hooks."""
    kept = [(hooks, dict(hooks)) for hooks in found]
    try:
        for hooks, own in kept:
            hooks.update({k: copy(hook) for k, hook in own.items()})
        yield
    finally:
        for hooks, own in kept:
            hooks.update(own)
