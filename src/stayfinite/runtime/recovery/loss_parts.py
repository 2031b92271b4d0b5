"""Splits a summed loss into parts and keeps the gradients of the finite ones.

The parts are found in the graph of the loss: from its root through operators that only add, scale or reshape, down to the
addends, or to the elements of a short vector (one loss per head). The gradient of each part is computed separately, and
the backward continues with the sum of the finite ones.

An element with gradient 0 still makes a NaN where a derivative is infinite (0 * inf). That would blame the wrong part, so
here zero times anything is zero (`_ZeroStays`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...numerics.health import is_finite

__all__ = ["Left", "LossPart", "by_parts", "split_loss"]

MOST_PARTS = 32
_LINEAR = {
    f"{name}Backward"
    for name in (
        "Add", "Sub", "Mul", "Div", "Neg", "Sum", "Mean", "Stack", "Cat", "View", "Squeeze", "Alias",
        "Unsqueeze", "Reshape", "ToCopy", "Clone", "Expand", "Select", "UnsafeView", "Accumulate",
    )
}  # fmt: skip
_KEEPS_ELEMENTS = {f"{name}Backward" for name in ("Mul", "Div", "Neg", "ToCopy", "Clone", "View")}


@dataclass(frozen=True)
class LossPart:
    """One addend, or one element of a vector that is summed."""

    node: Node
    output: int
    gradient: Tensor
    """The gradient of the loss with respect to it."""
    index: int | None = None
    """The index in the vector; None for an addend."""


@dataclass(frozen=True)
class Left:
    """The parts that were dropped from a backward."""

    names: tuple[str, ...]
    num_parts: int


def split_loss(loss: Tensor, into_elements: bool = False) -> list[LossPart]:
    """The addends of a loss, or the elements of vectors that are summed; a single part if it is not a sum, or
    has too many parts.

    >>> a, b = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    >>> loss = a.exp().sum() + 0.5 * b.exp().sum()
    >>> len(split_loss(loss)), len(split_loss(loss, into_elements=True))
    (2, 5)
    >>> len(split_loss(a.exp().prod()))
    1
    """
    if loss.grad_fn is None:
        return []
    root = LossPart(loss.grad_fn, loss.output_nr, torch.ones_like(loss.detach()))
    found: list[LossPart] = []
    todo = [root]
    while todo:
        part = todo.pop(0)
        parts = _step_down(part)
        if parts is None:
            found += _elements(part) if into_elements else [part]
        else:
            todo = parts + todo
        if len(found) + len(todo) > MOST_PARTS:
            return [root]
    return found


def _step_down(part: LossPart) -> list[LossPart] | None:
    """The inputs of this operator as parts; None if it is not linear."""
    node = part.node
    kind = node.name().rstrip("0123456789")
    live = [(k, n, i) for k, (n, i) in enumerate(node.next_functions) if n is not None]
    if kind not in _LINEAR or part.output or not live:
        return None
    if kind in ("MulBackward", "DivBackward") and len(live) > 1:
        return None  # a product of two computed operands
    is_vector = part.gradient.numel() > 1
    if is_vector and kind not in _KEEPS_ELEMENTS and kind not in ("StackBackward", "CatBackward"):
        return None  # the elements of this vector are the parts
    try:
        handed = node(part.gradient)  # type: ignore[operator]
    except RuntimeError:
        return None  # its saved tensors were freed
    handed = handed if isinstance(handed, tuple) else (handed,)
    kept = [LossPart(n, i, handed[k]) for k, n, i in live if handed[k] is not None]
    if any(p.gradient.numel() > MOST_PARTS for p in kept):
        return None
    return kept or None


def _elements(part: LossPart) -> list[LossPart]:
    count = part.gradient.numel()
    if count == 1:
        return [part]
    found = []
    for i in range(count):
        only = torch.zeros_like(part.gradient)
        only.view(-1)[i] = part.gradient.reshape(-1)[i]
        found.append(LossPart(part.node, part.output, only, i))
    return found


class _ZeroStays(TorchDispatchMode):
    """Lets a gradient of 0 stay 0, even times infinity.

    Only zeros of gradients count. A zero of the other operand times an infinite gradient is a NaN of the part itself.
    """

    def __init__(self, gradient: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held: list[Tensor] = []
        self._storages: set[int] = set()
        self._take(gradient)

    def _take(self, t: Tensor) -> None:
        """Note that it comes from the gradient; kept alive, so that its storage is not reused."""
        self._held.append(t)
        self._storages.add(_storage(t))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [a for a in tree_leaves((args, kwargs)) if isinstance(a, Tensor)]
        gradients = [a for a in given if _storage(a) in self._storages]
        if not gradients:
            return out
        name = func._schema.name
        if name in ("aten::mul", "aten::div") and isinstance(out, Tensor) and not is_finite(out):
            for factor in gradients:
                if name == "aten::mul" or factor is args[0]:
                    out = torch.where(factor == 0, torch.zeros_like(out), out)
        for t in tree_leaves(out):
            if isinstance(t, Tensor):
                self._take(t)
        return out


def _storage(t: Tensor) -> int:
    try:
        return int(t.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(t)  # a sparse tensor has no storage of its own


class _Values(TorchFunctionMode):
    """Records small results by the operator that made them."""

    def __init__(self) -> None:
        self.known: dict[Node, Tensor] = {}

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.numel() <= MOST_PARTS and not out.is_leaf:
            with torch._C.DisableTorchFunction():
                if out.grad_fn is not None:
                    self.known[out.grad_fn] = out.detach()
        return out


@contextlib.contextmanager
def by_parts(
    parameters: Callable[[], list[tuple[str, Tensor]]], report: Callable[[Left], None]
) -> Iterator[None]:
    """In this block, every backward drops the parts of its loss whose gradient is not finite."""
    original = Tensor.backward
    values = _Values()

    def backward(self: Tensor, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
        root = self
        if gradient is None and self.numel() == 1:
            root = _without_bad(self, parameters(), values, report)
        return original(root, gradient, *args, **kwargs)  # type: ignore[no-untyped-call]

    Tensor.backward = backward  # type: ignore[method-assign]
    try:
        with values:
            yield
    finally:
        Tensor.backward = original  # type: ignore[method-assign]
        values.known.clear()


def _without_bad(
    loss: Tensor, named: list[tuple[str, Tensor]], values: _Values, report: Callable[[Left], None]
) -> Tensor:
    """A loss with the value and the gradient of the good parts; the loss itself if there are none."""
    with torch._C.DisableTorchFunction():
        named = [(n, p) for n, p in named if p.requires_grad]
        tensors = [p for _, p in named]
        for into_elements in (False, True):
            parts = split_loss(loss, into_elements)
            if len(parts) < 2 or not named:
                continue
            by_part = [_gradients(part, tensors) for part in parts]
            is_good = [all(g is None or is_finite(g) for g in found) for found in by_part]
            if any(is_good):
                break
        else:
            return loss
        if all(is_good):
            return loss
        sums = _sums([g for g, ok in zip(by_part, is_good) if ok])
        touched = _touched([g for g, ok in zip(by_part, is_good) if not ok])
        # Parameters of bad parts only are not updated: no momentum step, no weight decay.
        alone = {i for i in touched if sums[i] is None or not sums[i].any()}  # type: ignore[union-attr]
        kept = [
            (p, g)
            for i, (p, g) in enumerate(zip(tensors, sums))
            if g is not None and i not in alone
        ]
        owners = _owner([named[i][0] for i in sorted(alone)])
        names = tuple(
            _name(k, part, parts, owners) for k, part in enumerate(parts) if not is_good[k]
        )
        report(Left(names, len(parts)))
        total = sum(((p * g).sum().float() for p, g in kept), torch.zeros((), device=loss.device))
        value = _value([p for p, ok in zip(parts, is_good) if ok], values, loss)
        return total - total.detach() + value


def _gradients(part: LossPart, tensors: list[Tensor]) -> tuple[Tensor | None, ...]:
    with _ZeroStays(part.gradient):
        return torch.autograd.grad(
            GradientEdge(part.node, part.output), tensors, part.gradient,
            retain_graph=True, allow_unused=True,
        )  # fmt: skip


def _sums(good: list[tuple[Tensor | None, ...]]) -> list[Tensor | None]:
    found: list[Tensor | None] = []
    for column in zip(*good):
        there = [g for g in column if g is not None]
        found.append(sum(there[1:], there[0]).detach() if there else None)
    return found


def _touched(bad: list[tuple[Tensor | None, ...]]) -> set[int]:
    return {
        i for found in bad for i, g in enumerate(found) if g is not None and bool((g != 0).any())
    }


def _owner(names: list[str]) -> str:
    """The innermost module that all of these belong to."""
    paths = [n.split(".")[:-1] for n in names]
    common: list[str] = []
    for level in zip(*paths):
        if len(set(level)) > 1:
            break
        common.append(level[0])
    return ".".join(common)


def _name(k: int, part: LossPart, parts: list[LossPart], owner: str) -> str:
    count = sum(p.node is part.node for p in parts) if part.index is not None else len(parts)
    number = part.index if part.index is not None else k
    return f"part {number} of {count}" + (f" ({owner})" if owner else "")


def _value(good: list[LossPart], values: _Values, loss: Tensor) -> Tensor:
    """The sum of the good parts if all are known, else the loss itself."""
    if is_finite(loss):
        return loss.detach()
    total = torch.zeros_like(loss.detach())
    for part in good:
        known = values.known.get(part.node)
        if known is None or known.shape != part.gradient.shape:
            return loss.detach()
        used = part.gradient != 0
        total += (part.gradient[used] * known[used]).sum()
    return total
