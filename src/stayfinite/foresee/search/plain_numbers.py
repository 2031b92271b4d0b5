"""Plain numbers in a batch, and one-element tensors."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .candidates import Candidate, Seen

__all__ = ["flags", "leaves", "numbers", "put"]

_MOST = 4
_MOST_ITEMS = 512
_TIMES = ((4, "possible"), (10, "possible"), (100, "far"))


def numbers(seen: Seen) -> Iterator[Candidate]:
    """Each number several times as large, and 0."""
    for path, value in list(_numbers(seen.batch))[:_MOST]:
        shown = "".join(f"[{key!r}]" for key in path)
        for times, level in _TIMES:
            new = value * times
            what = f"batch{shown} {new:g} instead of {value:g}"
            yield Candidate("number", what, _replaced(seen, path, new), level, may_raise=True)
        if value > 0:
            what = f"batch{shown} 0 instead of {value:g}"
            level = "possible" if isinstance(value, int) and value <= 2 else "far"
            make = _replaced(seen, path, type(value)(0))
            yield Candidate("number", what, make, level, may_raise=True)


def flags(seen: Seen) -> Iterator[Candidate]:
    """Each boolean in a batch inverted: a flipped label, a second task, the end of a warm-up."""
    for path, value in list(_flags(seen.batch))[:_MOST]:
        shown = "".join(f"[{key!r}]" for key in path)
        for i, batch in enumerate(seen.batches[:_MOST]):
            what = f"batch{shown} {not value} instead of {value} (batch {i})"
            make = _switched(batch, path, not value)
            yield Candidate("flag", what, make, may_raise=True)


def _switched(batch: Any, path: tuple[Any, ...], new: bool) -> Callable[[], Any]:
    return lambda: put(batch, path, new)


def _flags(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], bool]]:
    if isinstance(value, bool):
        yield path, value
    elif isinstance(value, Tensor):
        if value.dim() == 0 and value.dtype == torch.bool:
            yield path, bool(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flags(item, (*path, key))
    elif isinstance(value, (list, tuple)) and len(value) <= 8:
        for i, item in enumerate(value):
            yield from _flags(item, (*path, i))


def _numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, Tensor):
        if value.dim() == 0 and not value.is_complex() and value.dtype != torch.bool:
            yield path, value.item()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, (*path, key))
    elif isinstance(value, (list, tuple)) and len(value) <= 8:
        for i, item in enumerate(value):
            yield from _numbers(item, (*path, i))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            yield from _numbers(getattr(value, f.name), (*path, f.name))


def _replaced(seen: Seen, path: tuple[Any, ...], new: Any) -> Callable[[], Any]:
    return lambda: put(seen.batch, path, new)


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The same structure with the number at this place replaced."""
    if not path:
        return torch.full_like(value, new) if isinstance(value, Tensor) else new
    key, rest = path[0], path[1:]
    if isinstance(value, Mapping):
        return {**value, key: put(value[key], rest, new)}
    if isinstance(value, (list, tuple)):
        items = [put(v, rest, new) if i == key else v for i, v in enumerate(value)]
        is_named = hasattr(value, "_fields")
        return type(value)(*items) if is_named else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{key: put(getattr(value, key), rest, new)})
    changed = copy.copy(value)
    setattr(changed, key, put(getattr(value, key), rest, new))
    return changed


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The texts of a batch and its lists of plain numbers, each with its path.

    >>> [p for p, _ in leaves({"text": ["a", "b"], "ids": [[1, 2], [3]], "x": 4})]
    [('text', 0), ('text', 1), ('ids', 0), ('ids', 1)]
    """
    if isinstance(value, str) or (
        isinstance(value, list) and value and all(type(v) in (int, float) for v in value)
    ):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, (list, tuple)) and len(value) <= _MOST_ITEMS:
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
