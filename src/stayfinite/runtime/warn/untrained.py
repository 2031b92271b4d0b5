"""Finds tensors that a module uses as weights and that no optimizer trains.

Searched once, at the first deep check. By then a backward has left a gradient on those that require one, and no optimizer
clears it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ...records import Event
from ..state import TrainState
from .untrained_source import names_in_use, random_weights, weight_variables

__all__ = ["untrained_leaves", "untrained_weights"]

_SHOWN = 4
_FEWEST = 2
"""A tensor with a single number is usually a setting."""
_MOST_PARTS = 256
_REGISTERED = ("_parameters", "_buffers", "_modules")


def untrained_weights(state: TrainState, step: int) -> Event | None:
    """A warning about untrained weights; None if there are none."""
    trained = {id(p) for o in state.optimizers for g in o.param_groups for p in g["params"]}
    trained |= {id(p) for model in state.roots.values() for p in model.parameters()}
    frame = sys._getframe(1)
    modules = [m for model in state.roots.values() for m in model.modules()]
    plain = [(n, m, t) for n, m, t in _plain(state) if id(t) not in trained]
    wanting = [n for n, _, t in plain if t.requires_grad and t.grad is not None]
    known = trained | {id(t) for _, _, t in plain}
    wanting += [n for n, _ in weight_variables(frame, known)]
    still = [(n, m) for n, m, t in plain if not t.requires_grad and t.grad_fn is None]
    if still:
        used = names_in_use(modules, frame)
        still = [(n, m) for n, m in still if _attribute(n) in random_weights(type(m)) & used]
    texts = [_wanting(wanting)] if wanting else []
    texts += [_still([n for n, _ in still])] if still else []
    if not texts:
        return None
    first = (wanting or [n for n, _ in still])[0]
    return Event(
        step=step, phase="parameter", kind="untrained", symptom="parameter", name=first,
        message=" | ".join(texts),
    )  # fmt: skip


def untrained_leaves(state: TrainState) -> list[tuple[str, nn.Module, Tensor]]:
    """Attributes of modules that require a gradient and belong to no optimizer: name, owner, tensor."""
    trained = {id(p) for o in state.optimizers for g in o.param_groups for p in g["params"]}
    trained |= {id(p) for model in state.roots.values() for p in model.parameters()}
    found = [(n, m, t) for n, m, t in _plain(state) if t.requires_grad and id(t) not in trained]
    return [(n, m, t) for n, m, t in found if "[" not in n]


def _wanting(names: list[str]) -> str:
    is_one = len(names) == 1
    it = "it" if is_one else "them"
    return (
        f"{_listed(names)}: {'a plain tensor' if is_one else 'plain tensors'} that "
        f"{'gets a gradient' if is_one else 'get gradients'}, but no optimizer moves {it}, and "
        f"state_dict and .to() do not see {it}; make {it} nn.Parameter(...) instead of "
        "torch.rand(..., requires_grad=True)"
    )


def _still(names: list[str]) -> str:
    is_one = len(names) == 1
    it = "it" if is_one else "them"
    return (
        f"{_listed(names)}: {'a plain tensor' if is_one else 'plain tensors'} of random numbers that "
        f"{'is' if is_one else 'are'} used like a weight, but nobody trains {it}, and state_dict and .to() "
        f"do not see {it}; make {it} nn.Parameter(...), or use register_buffer for a constant"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN))


def _attribute(name: str) -> str:
    """The attribute name in a path: `table` in `blocks.0.table[3]`."""
    return name.partition("[")[0].rpartition(".")[2]


def _plain(state: TrainState) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Float tensors in attributes of modules that are not parameters or buffers, also in lists and dicts."""
    for root, model in state.roots.items():
        for path, module in model.named_modules():
            is_wrapper = type(module).__module__.startswith("torch.distributed.")
            for name, value in vars(module).items():
                if name in _REGISTERED or is_wrapper:
                    continue
                at = ".".join(p for p in (root, path, name) if p)
                for part, tensor in _tensors(at, value):
                    yield part, module, tensor


def _tensors(at: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, (list, tuple)):
        parts = [(f"{at}[{i}]", v) for i, v in enumerate(value[:_MOST_PARTS])]
    elif isinstance(value, dict):
        parts = [(f"{at}[{k!r}]", v) for k, v in list(value.items())[:_MOST_PARTS]]
    else:
        parts = [(at, value)]
    for name, part in parts:
        is_leaf = isinstance(part, Tensor) and part.is_leaf and part.is_floating_point()
        if is_leaf and part.numel() >= _FEWEST:
            yield name, part
