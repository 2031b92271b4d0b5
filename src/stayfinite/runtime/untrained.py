"""Weights that nobody trains: tensors of a module that get a gradient and are no parameters.

Looked for once, with the first deep check: by then a backward has left its gradient on them, since no
optimizer ever clears it.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from ..records import Event
from .state import TrainState

__all__ = ["untrained_weights"]

_SHOWN = 4


def untrained_weights(state: TrainState, step: int) -> Event | None:
    """What is to be told of them; None where every weight is somebody's."""
    trained = {id(p) for o in state.optimizers for g in o.param_groups for p in g["params"]}
    found = [name for name, t in _plain_leaves(state) if id(t) not in trained]
    if not found:
        return None
    names = ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" * (len(found) > _SHOWN))
    is_one = len(found) == 1
    return Event(
        step=step, phase="parameter", kind="untrained", symptom="parameter", name=found[0],
        message=f"{names}: {'a plain tensor' if is_one else 'plain tensors'} that "
        f"{'gets a gradient' if is_one else 'get gradients'}, but no optimizer moves "
        f"{'it' if is_one else 'them'}, and state_dict and .to() do not see {'it' if is_one else 'them'}; "
        "make it nn.Parameter(...) instead of torch.rand(..., requires_grad=True)",
    )  # fmt: skip


def _plain_leaves(state: TrainState) -> Iterator[tuple[str, Tensor]]:
    for root, model in state.roots.items():
        for path, module in model.named_modules():
            for name, value in vars(module).items():
                if _is_weight(value):
                    yield ".".join(p for p in (root, path, name) if p), value


def _is_weight(value: object) -> bool:
    is_plain = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
    if not is_plain or not isinstance(value, Tensor):
        return False
    return value.requires_grad and value.is_leaf and value.numel() > 1 and value.grad is not None
