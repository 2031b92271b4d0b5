"""Finds the tensors that receive gradients from a loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

__all__ = ["leaves_of"]


def leaves_of(losses: Iterable[Tensor]) -> Iterator[Tensor]:
    """The tensors whose gradients these losses add to; also after the backward."""
    todo: list[Any] = [t.grad_fn for t in losses]
    seen: set[Any] = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            yield variable
        todo += [n for n, _ in node.next_functions]
