"""Passes where the loop is over or cannot be sent back: its statements are run instead of it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import torch

from .body import Scene, can_bind, run_body
from .core import Core
from .passes import ActivePass, drive
from .tracing import eager_stance
from .window import Pass, PassResult, Window

__all__ = ["by_body"]

T = TypeVar("T")


def by_body(core: Core, scene: Scene, window: Window, passes: Generator[Pass, PassResult, T]) -> T:
    """Whatever passes are wanted, by the statements of this scene; what it all came to.

    `window`: the one that the variables of the scene belong to.
    """
    return drive(passes, lambda wanted: _run(core, scene, window, wanted))


def _run(core: Core, scene: Scene, window: Window, wanted: Pass) -> PassResult:
    refs = wanted.window.batches
    # Other batches than the scene's own have to be put where the loop takes them.
    is_known = refs == window.batches or all(can_bind(scene, ref) for ref in refs)
    if not refs or not is_known or (wanted.is_applied and not _can_step(core, wanted)):
        return PassResult(is_complete=False)
    active = ActivePass(core, wanted)
    core.state.clear_grads()
    with active, eager_stance(), torch.enable_grad():
        try:
            _go(core, scene, active)
        except RuntimeError:  # a variable of the scene may hang on a graph that is gone
            active.result.is_complete = False
    core.state.clear_grads()
    return active.result


def _go(core: Core, scene: Scene, active: ActivePass) -> None:
    refs = active.wanted.window.batches
    for ref in refs:
        made = [t for t in run_body(scene, ref) if t.requires_grad]
        if not made:
            active.result.is_complete = False
            return
        active.before_backward(made[-1], ref.step)
        if active.is_decided:
            return
        made[-1].backward()
        active.after_backward(ref.step)
    if active.wanted.is_applied:
        optimizer = core.state.optimizers[0]
        active.on_step(optimizer, optimizer.step, refs[-1].step)


def _can_step(core: Core, wanted: Pass) -> bool:
    """Whether `step` is all that the loop does with its gradients."""
    state = core.state
    return len(state.optimizers) == 1 and not state.is_scaled and wanted.window.norm is None
