"""A setting changed for the length of each optimizer step, and put back behind it.

The script's own settings stay what they are, however it sets them; what is changed is what a step uses.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

__all__ = ["before_steps", "clipped", "scaled_lr"]

Change = Callable[[Optimizer], Callable[[], None]]


@contextlib.contextmanager
def before_steps(change: Change) -> Iterator[None]:
    """`change` runs before each optimizer step and returns what undoes it."""
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


def scaled_lr(factor: float) -> contextlib.AbstractContextManager[None]:
    """Every learning rate times `factor`."""

    def change(optimizer: Optimizer) -> Callable[[], None]:
        groups = [g for g in optimizer.param_groups if "lr" in g]
        kept = [g["lr"] for g in groups]
        for g in groups:
            g["lr"] = g["lr"] * factor

        def undo() -> None:
            for g, rate in zip(groups, kept):
                g["lr"] = rate

        return undo

    return before_steps(change)


def clipped(limit: float) -> contextlib.AbstractContextManager[None]:
    """Gradients clipped to a total norm of `limit` before each step."""

    def change(optimizer: Optimizer) -> Callable[[], None]:
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        dense = [g for g in grads if g.layout == torch.strided]
        if dense:
            with torch.no_grad():
                norms = torch._foreach_norm([g.detach().double() for g in dense])
                total = float(torch.linalg.vector_norm(torch.stack([n.cpu() for n in norms])))
                if total > limit and math.isfinite(total):
                    torch._foreach_mul_([g.detach() for g in dense], limit / total)
        return lambda: None

    return before_steps(change)
