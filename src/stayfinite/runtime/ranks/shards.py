"""Sharded parameters: each rank checks its own part, without a collective."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...numerics.health import dense_parts, magnitudes
from ..state import TrainState

__all__ = ["begin_anew", "local", "note_initial", "plain_norm"]


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, without a collective; other tensors are returned unchanged.

    >>> local(torch.ones(2))
    tensor([1., 1.])
    """
    part: Tensor | None = getattr(tensor, "_local_tensor", None)
    if part is None:
        return tensor
    if type(part) is not Tensor and hasattr(
        part, "wait"
    ):  # the result of a collective that is still running
        part = part.wait()
    return part


def plain_norm(norm: Tensor) -> Tensor:
    """The total norm as a plain tensor; for DTensors, `clip_grad_norm_` returns a DTensor."""
    placements: Sequence[Any] = getattr(norm, "placements", ())
    if any(p.is_partial() for p in placements):
        return norm.full_tensor()  # type: ignore[attr-defined, no-any-return]
    return local(norm)


@torch.no_grad()
def note_initial(state: TrainState) -> None:
    """Note the state before the first step, on each rank for its own shards.

    The norm of a DTensor would need a collective, and the parameters to measure may differ between ranks.
    """
    if not any(hasattr(p, "device_mesh") for _, p in state.parameters()):
        state.note_initial()
        return
    state.initially_bad = {f"{k} {n}" for k, n, _ in state.bad_state(ignore_initial=False)}
    state.first_sizes = {}
    for name, p in state.parameters():
        parts = dense_parts(p)
        if parts and f"parameter {name}" not in state.initially_bad:
            largest = max(map(float, magnitudes(parts)))
            norm = math.hypot(*(float(torch.linalg.vector_norm(t)) for t in parts))
            state.first_sizes[name] = (largest, norm)
    state.first_lrs = state.lrs()


def begin_anew(models: Iterable[nn.Module], wrappers: Iterable[Any]) -> None:
    """Reset the notes that FSDP2, and DistributedDataParallel in `wrappers`, have of a forward or backward that ended
    half-way on all ranks.
    """
    for wrapper in wrappers:
        wrapper.reducer._reset_state()
    for model in models:
        for module in model.modules():
            ask = getattr(module, "_get_fsdp_state", None)
            state = ask() if ask is not None else None
            if getattr(state, "_is_root", False):
                _forget_pass(state)


def _forget_pass(root: Any) -> None:
    states = root._state_ctx.all_states
    groups = [g for s in states for g in _param_groups(s)]
    for group in groups:
        group._all_gather_result = None  # the group that it would wait for is closed
    if hasattr(root, "_reset_iter_state"):
        root._reset_iter_state()
        return
    root._comm_ctx.post_forward_order.clear()  # torch before 2.13
    root._comm_ctx.all_gather_state = None
    root._state_ctx.iter_forward_root = None
    root._state_ctx.post_backward_final_callback_queued = False
    for part in (*states, *groups):
        part._training_state = type(part._training_state).IDLE
    for group in groups:
        group._post_forward_indices.clear()
        group._to_sharded()


def _param_groups(state: Any) -> list[Any]:
    several = getattr(state, "_fsdp_param_groups", None)
    one = getattr(state, "_fsdp_param_group", None)
    return list(several) if several is not None else [one] if one is not None else []
