"""Changes a setting during each optimizer step and restores it afterwards.

The script can set its own settings as it likes: the change applies only inside the step.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..devices import widest
from .ranks.shards import plain_norm

__all__ = ["before_steps", "clipped", "limited_lr", "other_rates", "scaled_lr"]

Change = Callable[[Optimizer], Callable[[], None]]


@contextlib.contextmanager
def before_steps(change: Change) -> Iterator[None]:
    """Run `change` before each optimizer step; it returns a function that undoes it after the step."""
    undo: list[Callable[[], None]] = []

    def before(optimizer: Optimizer, args: object, kwargs: object) -> None:
        undo.append(change(optimizer))

    def after(optimizer: Optimizer, args: object, kwargs: object) -> None:
        while undo:
            undo.pop()()

    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        yield
    finally:
        while undo:
            undo.pop()()
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def scaled_lr(factor: float) -> Iterator[None]:
    """Multiply every learning rate by `factor`."""
    with before_steps(other_rates(lambda now: [rate * factor for rate in now])):
        yield


@contextlib.contextmanager
def limited_lr(limit: float) -> Iterator[None]:
    """Limit every learning rate, whatever a schedule sets."""
    with before_steps(other_rates(lambda now: [min(float(rate), limit) for rate in now])):
        yield


def other_rates(
    chosen: Callable[[list[Any]], Sequence[Any]],
) -> Callable[[Optimizer], Callable[[], None]]:
    """What `chosen` makes of the rates of an optimizer's groups; for `before_steps`."""

    def change(optimizer: Optimizer) -> Callable[[], None]:
        groups = [g for g in optimizer.param_groups if "lr" in g]
        kept = [g["lr"] for g in groups]
        for g, rate in zip(groups, chosen(kept)):
            g["lr"] = rate

        def undo() -> None:
            for g, old in zip(groups, kept):
                g["lr"] = old

        return undo

    return change


def _norm(grads: list[Tensor]) -> float:
    if any(hasattr(g, "device_mesh") for g in grads):  # over all ranks, like `clip_grad_norm_`
        return float(plain_norm(get_total_norm(grads)))
    norms = torch._foreach_norm([g.detach().to(widest(g.device)) for g in grads])
    return float(torch.linalg.vector_norm(torch.stack([n.cpu() for n in norms])))


@contextlib.contextmanager
def clipped(limit: float) -> Iterator[None]:
    """Clip the gradients to a total norm of `limit` before each step."""

    def change(optimizer: Optimizer) -> Callable[[], None]:
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        dense = [g for g in grads if g.layout == torch.strided]
        if dense:
            with torch.no_grad():
                total = _norm(dense)
                if total > limit and math.isfinite(total):
                    torch._foreach_mul_([g.detach() for g in dense], limit / total)
        return lambda: None

    with before_steps(change):
        yield
