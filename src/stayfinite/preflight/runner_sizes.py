"""How large weights and moments are: what grows without end is seen long before it overflows."""

from __future__ import annotations

import torch

from ..runtime.state import TrainState

__all__ = ["peaks"]


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
