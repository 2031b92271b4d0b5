"""State as plain values: tensors, numbers, text, lists, tuples and dicts, which `torch.load` reads with
`weights_only=True`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["NOT_PLAIN", "copied", "plain", "plain_part"]

NOT_PLAIN = object()


def copied(t: Tensor) -> Tensor:
    """A copy in host memory."""
    return t.detach().cpu().clone()


def _needs_copy(t: Tensor) -> bool:
    """Whether writing the tensor itself would write more than its values, or it is on a device."""
    if t.layout != torch.strided:
        return False
    is_whole = t.is_contiguous() and t.untyped_storage().nbytes() == t.numel() * t.element_size()
    return not t.is_cpu or not is_whole or type(t) not in (Tensor, torch.nn.Parameter)


def plain(value: Any) -> Any:
    """The value, made of plain parts, for writing it at once; else `NOT_PLAIN`."""
    if isinstance(value, Tensor):
        return copied(value) if _needs_copy(value) else value.detach()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        items = {k: plain(v) for k, v in value.items()}
        is_bad = any(v is NOT_PLAIN for v in items.values())
        is_bad = is_bad or not all(isinstance(k, (str, int)) for k in items)
        return NOT_PLAIN if is_bad else items
    if isinstance(value, (list, tuple)):
        parts = [plain(v) for v in value]
        if any(p is NOT_PLAIN for p in parts):
            return NOT_PLAIN
        return tuple(parts) if isinstance(value, tuple) else parts
    return NOT_PLAIN


def plain_part(value: dict[str, Any]) -> dict[str, Any]:
    """The plain part of a value; a scheduler's functions are omitted."""
    return {k: p for k, v in value.items() if (p := plain(v)) is not NOT_PLAIN}
