"""Walks through a batch of any structure: tensors, dicts, dataclasses, nested."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from .outside_modes import outside_user_code

__all__ = ["batch_bytes", "named_tensors"]

_DEPTH = 8


def named_tensors(value: Any, name: str = "batch", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a batch, each with the expression that reaches it.

    >>> import torch
    >>> [n for n, _ in named_tensors({"x": torch.zeros(1), "meta": [torch.zeros(2)]})]
    ["batch['x']", "batch['meta'][0]"]
    """
    if isinstance(value, Tensor):
        yield name, value
        return
    if depth > _DEPTH or value is None or isinstance(value, (str, bytes, int, float)):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tensors(item, f"{name}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple)):
        fields = getattr(value, "_fields", None)
        for i, item in enumerate(value):
            part = f"{name}.{fields[i]}" if fields else f"{name}[{i}]"
            yield from named_tensors(item, part, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            yield from named_tensors(getattr(value, f.name), f"{name}.{f.name}", depth + 1)
    elif hasattr(value, "__dict__"):
        for key, item in vars(value).items():
            if isinstance(item, (Tensor, Mapping, list, tuple)):
                yield from named_tensors(item, f"{name}.{key}", depth + 1)


@outside_user_code
def batch_bytes(value: Any) -> int:
    """The size of the batch's tensors in bytes."""
    return sum(t.numel() * t.element_size() for _, t in named_tensors(value))
