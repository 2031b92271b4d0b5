"""Passes where the loop is over or cannot be sent back: its statements are run instead of it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import torch

from .body import Scene, run_body
from .core import Core
from .passes import ActivePass
from .tracing import eager_stance
from .window import Pass, PassResult

__all__ = ["by_body"]

T = TypeVar("T")


def by_body(core: Core, scene: Scene, passes: Generator[Pass, PassResult, T]) -> T:
    """Whatever passes are wanted, by the statements of this scene; what it all came to."""
    try:
        wanted = next(passes)
        while True:
            wanted = passes.send(_run(core, scene, wanted))
    except StopIteration as stop:
        found: T = stop.value
        return found


def _run(core: Core, scene: Scene, wanted: Pass) -> PassResult:
    refs = wanted.window.batches
    if not refs or (wanted.is_applied and not (_can_step(core, wanted) and refs[0].items)):
        return PassResult(is_complete=False)
    active = ActivePass(core, wanted)
    core.state.clear_grads()
    with active, eager_stance(), torch.enable_grad():
        for ref in refs:
            made = [t for t in run_body(scene, ref) if t.requires_grad]
            if not made:
                active.result.is_complete = False
                break
            active.before_backward(made[-1], ref.step)
            if active.is_decided:
                break
            made[-1].backward()
            active.after_backward(ref.step)
        if wanted.is_applied and active.result.is_complete:
            optimizer = core.state.optimizers[0]
            active.on_step(optimizer, optimizer.step, refs[-1].step)
    core.state.clear_grads()
    return active.result


def _can_step(core: Core, wanted: Pass) -> bool:
    """Whether `step` is all that the loop does with its gradients."""
    scalers = [s for s in core.state.scalers if s.is_enabled()]
    return len(core.state.optimizers) == 1 and not scalers and wanted.window.norm is None
