"""Sizes of weights and moments, as values and as bytes.

What grows without end is seen long before it overflows; what is kept for the backward is what a batch
costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ...runtime.state import TrainState

__all__ = ["SavedSizes", "peaks", "state_sizes"]


def peaks(state: TrainState) -> dict[str, float]:
    """The largest magnitude of each weight and of each moment, by name."""
    named = [*state.parameters(), *state.optimizer_state()]
    chosen = [
        (n, t)
        for n, t in named
        if t.is_floating_point() and t.numel() > 1 and t.layout is torch.strided
    ]
    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
        return {n: float(t.detach().abs().max()) for n, t in chosen}


class SavedSizes:
    """How many bytes the forward keeps for the backward: each piece of memory once.

    What is there anyway (parameters, buffers, the batch) does not count.

    >>> x, w = torch.ones(8, 4), torch.ones(4, 2, requires_grad=True)
    >>> with SavedSizes([x, w]) as sizes:
    ...     loss = (x @ w).exp().sum()
    >>> sizes.num_bytes  # exp keeps its result: 8 x 2 floats
    64
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        self._seen = {_place(t) for t in known}
        self._hooks: Any = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t)
        self.num_bytes = 0

    def __enter__(self) -> SavedSizes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._hooks.__exit__(*exc)

    def _pack(self, t: Tensor) -> Tensor:
        place = _place(t)
        if place not in self._seen:
            self._seen.add(place)
            self.num_bytes += _num_bytes(t)
        return t


def state_sizes(state: TrainState) -> dict[str, int]:
    """The bytes that the training holds from step to step, by what they are for."""
    parts = {
        "parameters": [t for _, t in state.parameters()],
        "gradients": [t for _, t in state.parameters() if t.requires_grad],
        "optimizer": [t for _, t in state.optimizer_state()],
    }
    return {name: sum(_num_bytes(t) for t in tensors) for name, tensors in parts.items()}


def _place(t: Tensor) -> int:
    """Where it lies: a view is no memory of its own."""
    try:
        return t.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return id(t)  # a sparse tensor has no storage


def _num_bytes(t: Tensor) -> int:
    try:
        return t.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):
        return t.numel() * t.element_size()
