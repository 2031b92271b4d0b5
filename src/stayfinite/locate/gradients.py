"""The gradients of one backward: where their exact zeros come from, and how large they grow.

A NaN that is 0 * inf needs both halves of the story. The infinity is a bad value and has a note;
the zero is a perfectly good value, so its maker has to be remembered here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..numerics.health import dense_parts

__all__ = ["GradientFlow"]

_COUNT_LIMIT = 1 << 22
"""Larger gradients are not counted: the zero's maker is a nicety, the replay's time is not."""
_MAX_WALK = 4096


@dataclass(frozen=True)
class _Flow:
    node: str
    zero_share: float
    parents: tuple[_Flow, ...]


class GradientFlow:
    """Told of every operator of the backward, in order."""

    def __init__(self) -> None:
        self._flows: dict[int, _Flow] = {}
        self.peaks: list[tuple[str, float]] = []
        """(autograd node, largest magnitude of its gradients), in the order of the backward."""

    def note(self, node: str, given: Iterable[Tensor], results: Iterable[Tensor]) -> None:
        """An operator inside `node` made `results` out of `given`.

        What a node computes from saved values alone (a derivative) is no gradient and is passed by.
        """
        parents: list[_Flow] = []
        for tensor in given:
            flow = self.of(tensor)
            if flow is not None and flow not in parents:
                parents.append(flow)
        if not parents:
            return
        for tensor in results:
            for part in dense_parts(tensor):
                if part.numel() > _COUNT_LIMIT:
                    continue
                share = 1.0 - float(torch.count_nonzero(part)) / part.numel()
                flow = _Flow(node, share, tuple(parents))
                self._flows[part.untyped_storage().data_ptr()] = flow
                self._peak(node, part)

    def start(self, root: Tensor) -> None:
        """The gradient of the loss with respect to itself."""
        for part in dense_parts(root):
            self._flows[part.untyped_storage().data_ptr()] = _Flow("", 0.0, ())

    def _peak(self, node: str, part: Tensor) -> None:
        low, high = (float(v) for v in torch.aminmax(part))
        value = max(abs(low), abs(high))
        if value != value:
            return
        if self.peaks and self.peaks[-1][0] == node:
            self.peaks[-1] = (node, max(self.peaks[-1][1], value))
        else:
            self.peaks.append((node, value))

    def of(self, tensor: Tensor) -> _Flow | None:
        """What is known of the gradient in this memory; None if it is no gradient."""
        for part in dense_parts(tensor):
            return self._flows.get(part.untyped_storage().data_ptr())
        return None

    def zero_makers(self, tensor: Tensor) -> set[str]:
        """The nodes that put exact zeros into this gradient."""
        start = self.of(tensor)
        found: set[str] = set()
        seen: set[int] = set()
        todo = [start] if start is not None else []
        while todo and len(seen) < _MAX_WALK:
            flow = todo.pop()
            if id(flow) in seen or flow.zero_share == 0.0:
                continue
            seen.add(id(flow))
            if all(p.zero_share < flow.zero_share for p in flow.parents):
                found.add(flow.node)
            # A part of the zeros may be older than those that were added here.
            todo += flow.parents
        return found
