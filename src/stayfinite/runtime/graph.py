"""Finds the tensors that receive gradients from a loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

__all__ = ["leaves_of"]

_MAX_NODES = 20_000


def leaves_of(losses: Iterable[Tensor]) -> Iterator[Tensor]:
    """The leaf tensors of the graphs of these losses, each once; also after the backward."""
    todo: list[Any] = [t.grad_fn for t in losses]
    seen: set[Any] = set()
    found: set[int] = set()
    while todo and len(seen) < _MAX_NODES:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor) and id(variable) not in found:
            found.add(id(variable))
            yield variable
        todo += [n for n, _ in node.next_functions]
