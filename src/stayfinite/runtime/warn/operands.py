"""The values in an autograd graph that decide whether a step stays finite.

Autograd keeps for the backward what the forward has computed: the result of an `exp`, the argument of a `log`. So the
operators of a healthy step can be looked at without watching it, and without computing anything again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Key", "Operand", "operands", "shares"]

Key = tuple[str, int, int]
"""The node's name, its number among those of this name, and their number: the same operator in every step."""

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_AT_ZERO = {
    "LogBackward0": "self", "Log2Backward0": "self", "Log10Backward0": "self", "SqrtBackward0": "result",
    "DivBackward0": "other",
}  # fmt: skip
"""What must not become 0; for `pow` its base, if the exponent is below 1."""
_AT_TOP = {
    "ExpBackward0": "result", "Exp2Backward0": "result", "Expm1Backward0": "result", "SinhBackward0": "result",
    "RsqrtBackward0": "result", "ReciprocalBackward0": "result",
}  # fmt: skip
_HALF_AT_TOP = {
    "MmBackward0": "self", "AddmmBackward0": "mat1", "BmmBackward0": "self", "ConvolutionBackward0": "input",
    "GeluBackward0": "self", "SiluBackward0": "self", "ReluBackward0": "result", "MulBackward0": "self",
}  # fmt: skip
"""Activations, which have room enough in all dtypes but float16."""
_FLOORS = (
    "AddBackward0",
    "ClampBackward0",
    "ClampBackward1",
    "ClampMinBackward0",
    "MaximumBackward0",
)
_MOST_NODES = 20_000
_MOST_OF_A_NAME = 64
_MOST_BYTES = 1 << 28
_MOST_SIGNED = 1 << 16
"""The smallest magnitude of a larger tensor would need a copy of it."""
_NO_HOOK = object()


@dataclass(frozen=True)
class Operand:
    """A value that is looked at, and the limit that it must not reach."""

    key: Key
    node: Any
    tensor: Tensor
    is_at_zero: bool
    power: float = 1.0
    """The operator raises the value to this power."""

    @property
    def op(self) -> str:
        return self.key[0].rstrip("0123456789").removesuffix("Backward").lower()

    @property
    def log_limit(self) -> float:
        """The logarithm of the largest number, or of the smallest above 0."""
        info = torch.finfo(self.tensor.dtype)
        return math.log(info.smallest_normal * info.eps if self.is_at_zero else info.max)

    def figure(self) -> Tensor:
        """The value next to the limit, as a scalar on the device."""
        if self.is_at_zero and self.key[0] == "DivBackward0":
            return self.tensor.abs().amin()
        if self.is_at_zero:
            return self.tensor.amin()
        low, high = torch.aminmax(self.tensor)
        return torch.maximum(-low, high)


def operands(loss: Tensor) -> list[Operand]:
    """The operands in the graph of this loss, in a fixed order."""
    found: list[tuple[str, Any, Tensor, bool, float]] = []
    num_bytes = 0
    totals: Counter[str] = Counter()
    for node in _nodes(loss.grad_fn):
        name = node.name()
        if totals[name] == _MOST_OF_A_NAME:
            continue
        for attribute, is_at_zero, is_half, power in _watched(name, node):
            tensor = _saved(node, attribute, is_half)
            is_copied = is_at_zero and name == "DivBackward0"
            if tensor is None or (is_copied and tensor.numel() > _MOST_SIGNED):
                continue
            num_bytes += tensor.numel() * tensor.element_size()
            if num_bytes > _MOST_BYTES:
                break
            found.append((name, node, tensor, is_at_zero, power))
            totals[name] += 1
    seen: Counter[str] = Counter()
    made: list[Operand] = []
    for name, node, tensor, is_at_zero, power in found:
        made.append(Operand((name, seen[name], totals[name]), node, tensor, is_at_zero, power))
        seen[name] += 1
    return made


def shares(looked: list[Operand]) -> list[float | None]:
    """How far each is on its way to its limit, in orders of magnitude; read in one transfer.

    None for a value that is at the limit already, which does no harm then, and for one that is not finite.
    """
    if not looked:
        return []
    first = looked[0].tensor.device
    figures = torch.stack([o.figure().to(first, torch.float32) for o in looked]).tolist()
    return [_share(o, v) for o, v in zip(looked, figures)]


def _share(operand: Operand, value: float) -> float | None:
    if not 0 < value < math.inf:
        return None
    share = operand.power * math.log(value) / operand.log_limit
    return share if share < 1 else None


def _nodes(root: Any) -> Iterator[Any]:
    """The nodes of a graph in a fixed order."""
    todo: list[Any] = [root]
    seen: set[Any] = set()
    while todo and len(seen) < _MOST_NODES:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        todo += [n for n, _ in node.next_functions]


def _watched(name: str, node: Any) -> Iterator[tuple[str, bool, bool, float]]:
    """(attribute, whether its limit is 0, whether only for float16, power)"""
    if name in _AT_ZERO and not _has_floor(name, node):
        yield _AT_ZERO[name], True, False, 2.0 if name == "SqrtBackward0" else 1.0
    elif name in _AT_TOP:
        yield _AT_TOP[name], False, False, 1.0
    elif name in _HALF_AT_TOP:
        yield _HALF_AT_TOP[name], False, True, 1.0
    elif name == "PowBackward0":
        exponent = node._saved_exponent
        if isinstance(exponent, (int, float)) and exponent > 1:
            yield "self", False, False, float(exponent)
        elif isinstance(exponent, (int, float)) and exponent < 1 and not _has_floor(name, node):
            yield "self", True, False, abs(float(exponent)) if exponent < 0 else 1.0


def _has_floor(name: str, node: Any) -> bool:
    """Whether a constant was added to the operand, or it was clamped: then it ends its way before 0."""
    index = 1 if name == "DivBackward0" else 0
    inputs = node.next_functions
    above = inputs[index][0] if len(inputs) > index else None
    if above is None:
        return True  # no gradient flows there: nothing trains it
    if above.name() not in _FLOORS:
        return False
    return above.name() != "AddBackward0" or any(n is None for n, _ in above.next_functions)


def _saved(node: Any, attribute: str, is_half: bool) -> Tensor | None:
    """What autograd keeps; None if reading it would run code of the user's (a checkpoint computes it again)."""
    raw = getattr(node, f"_raw_saved_{attribute}", None)
    if raw is None or getattr(raw, "unpack_hook", _NO_HOOK) is not None:
        return None
    try:
        tensor = getattr(node, f"_saved_{attribute}")
    except RuntimeError:  # changed in place, or released
        return None
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return None
    if tensor.dtype not in _DTYPES or not tensor.numel() or tensor.is_meta:
        return None
    if is_half and tensor.dtype != torch.float16:
        return None
    is_there = tensor.untyped_storage().nbytes() >= tensor.element_size()
    return tensor.detach() if is_there else None
