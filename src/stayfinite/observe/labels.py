"""`step` and `zero_grad` without the labels that torch writes round them for profilers.

Writing them takes 45 µs of a loop's turn, three times what the sentinel's check takes, so they are left
out while no profiler is listening. What gets in a step's way on purpose (hooks, a compiler) keeps the
whole of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as _home

__all__ = ["drop_grads", "needs_label", "step_of", "unlabeled"]

_is_profiled = torch._C._autograd._profiler_enabled
_NEVER: dict[Any, Any] = {0: None}
# A torch that keeps its hooks elsewhere gets its steps as they are.
_before_all = getattr(_home, "_global_optimizer_pre_hooks", _NEVER)
_after_all = getattr(_home, "_global_optimizer_post_hooks", _NEVER)


def _nothing(optimizer: Optimizer) -> None: ...


def _code(step: Any) -> Any:
    return getattr(step, "__code__", None)


_LABELED = _code(getattr(Optimizer, "profile_hook_step", lambda step: None)(_nothing))


def unlabeled(step: Any) -> Callable[..., Any] | None:
    """The class's own function under torch's wrapper with label and hooks; None if it has none.

    >>> optimizer = torch.optim.SGD([torch.zeros(1)])
    >>> unlabeled(type(optimizer).step).__name__, unlabeled(print)
    ('step', None)
    """
    if _LABELED is None or _code(step) is not _LABELED:
        return None
    inner: Callable[..., Any] = step.__wrapped__
    return inner


def needs_label(optimizer: Optimizer) -> bool:
    """Whether somebody would miss the wrapper: a hook, a profiler, a compiler."""
    own = optimizer.__dict__
    return bool(
        _before_all
        or _after_all
        or own.get("_optimizer_step_pre_hooks", _NEVER)
        or own.get("_optimizer_step_post_hooks", _NEVER)
        or _is_profiled()
        or torch.compiler.is_compiling()
    )


def step_of(optimizer: Optimizer) -> Callable[..., Any]:
    """What to call for one step of it, now."""
    cls = type(optimizer)
    inner = unlabeled(cls.step) if "step" not in optimizer.__dict__ else None
    if inner is None or needs_label(optimizer):
        return optimizer.step
    return inner.__get__(optimizer, cls)  # type: ignore[no-any-return]


def drop_grads(optimizer: Optimizer) -> None:
    """What `zero_grad` does with `set_to_none`, its default."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
