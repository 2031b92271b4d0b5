"""Cuts batches by rows, whatever their structure."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .batches import named_tensors

__all__ = ["cover_rows", "map_tensors", "num_rows", "take_rows"]


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a structure; objects of unknown types stay as they are.

    >>> map_tensors({"x": (torch.ones(2), 3)}, lambda t: t + 1)
    {'x': (tensor([2., 2.]), 3)}
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        items = {k: map_tensors(v, change) for k, v in value.items()}
        try:
            return type(value)(items)  # type: ignore[call-arg]
        except TypeError:
            return items
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(v, change) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(v, change) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            f.name: map_tensors(getattr(value, f.name), change)
            for f in dataclasses.fields(value)
            if f.init
        }
        return dataclasses.replace(value, **changed)
    return _map_object(value, change) if _is_record(value) else value


def _is_record(value: Any) -> bool:
    """Whether this is an object of a user's class with tensors, as `named_tensors` walks it."""
    if isinstance(value, (type, Mapping, torch.nn.Module)) or not hasattr(value, "__dict__"):
        return False
    return not callable(value) and any(True for _ in named_tensors(value))


def _map_object(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    try:
        new = copy.copy(value)
    except Exception:
        return value  # it does not want to be copied
    for key, item in vars(value).items():
        if isinstance(item, (Tensor, Mapping, list, tuple)):
            vars(new)[key] = map_tensors(item, change)
    return new


def num_rows(value: Any) -> int | None:
    """The number of samples in a batch: the first dimension that most of its tensors share.

    >>> num_rows((torch.zeros(4, 2), torch.zeros(4)))
    4
    >>> num_rows(torch.zeros(()))
    """
    sizes = Counter(t.shape[0] for _, t in named_tensors(value) if t.dim() > 0)
    if not sizes:
        return None
    size, votes = sizes.most_common(1)[0]
    return size if size > 1 and (votes > 1 or len(sizes) == 1) else None


def take_rows(value: Any, rows: Sequence[int], total: int) -> Any:
    """Keep only these rows of a batch; tensors with another first dimension stay as they are."""
    index = torch.tensor(list(rows), dtype=torch.long)

    def cut(t: Tensor) -> Tensor:
        if t.dim() == 0 or t.shape[0] != total:
            return t
        return t.detach().index_select(0, index.to(t.device)).requires_grad_(t.requires_grad)

    return map_tensors(value, cut)


def cover_rows(value: Any, rows: Sequence[int], total: int) -> Any:
    """Replace these rows by copies of a good one, so that every shape stays the same."""
    good = next(i for i in range(total) if i not in set(rows))
    return take_rows(value, [good if i in set(rows) else i for i in range(total)], total)
