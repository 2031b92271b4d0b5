"""Walks the tree of a file and collects named tensors and plain numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor

from .limits import LimitError, Limits
from .values import ArrayRef, GlobalRef, Opaque, StorageRef, TensorRef

__all__ = ["Leaf", "clean", "leaves", "resolve", "weight_name"]

_WRAPPERS = frozenset(
    {
        "state_dict",
        "model",
        "module",
        "model_state_dict",
        "model_state",
        "net",
        "network",
        "weights",
        "params",
    }
)


_LEAVES = (TensorRef, StorageRef, ArrayRef, float, int, complex, Tensor)
_CONTAINERS = (dict, list, tuple, Opaque, TensorRef, ArrayRef)


@dataclass(slots=True)
class Leaf:
    """A tensor or a number, and the keys that lead to it."""

    path: tuple[str, ...]
    value: Any

    @property
    def name(self) -> str:
        return ".".join(self.path)


def clean(text: str, at_most: int = 200) -> str:
    """Make text from a file safe to print: a name may contain terminal control sequences.

    >>> clean("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    if len(text) <= at_most and text.isprintable():
        return text
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: at_most + 1])
    return shown if len(text) <= at_most else shown[:at_most] + "…"


def leaves(root: Any, limits: Limits, prefix: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Every tensor, array and number below `root`, in file order.

    Each container is visited once, so cycles and shared parts end. It is not recursive, and needs one iterator per level.
    """
    seen: set[int] = set()
    levels: list[tuple[tuple[str, ...], Iterator[tuple[Any, Any]]]] = [
        (prefix, iter([(None, root)]))
    ]
    num_found = 0
    while levels:
        above, children = levels[-1]
        for key, value in children:
            path = above + _step(key)
            if isinstance(value, _LEAVES):
                num_found += 1
                if num_found > limits.max_objects:
                    raise LimitError(f"more than {limits.max_objects:,} values to look at")
                yield Leaf(path, value)
                if not isinstance(value, (TensorRef, ArrayRef)):
                    continue
            limits.tick()
            if not isinstance(value, _CONTAINERS) or id(value) in seen:
                continue
            inner = _children(value)
            if inner is None:
                continue
            seen.add(id(value))
            if len(levels) > limits.max_depth:
                raise LimitError(f"containers are nested more than {limits.max_depth} deep")
            levels.append((path, inner))
            break
        else:
            levels.pop()


def _step(key: Any) -> tuple[str, ...]:
    if type(key) is str and len(key) <= 200 and key.isprintable():
        return (key,)
    return () if key is None else (clean(str(key) if not isinstance(key, bytes) else repr(key)),)


def _children(value: Any) -> Iterator[tuple[Any, Any]] | None:
    """(key, child) of a container; None when there are none."""
    if isinstance(value, dict):
        return iter(value.items())
    if isinstance(value, (list, tuple)):
        return iter(enumerate(value))
    if isinstance(value, Opaque):
        state = value.state
        inner = [(None, state)] if isinstance(state, (dict, tuple, Opaque)) else []
        return chain(inner, value.items, [(None, value.args)] if value.args else [])
    if isinstance(value, TensorRef):
        return iter(value.extras.items()) if value.extras else None
    if isinstance(value, ArrayRef) and isinstance(value.data, list):
        return iter(enumerate(value.data))
    return None


def resolve(root: Any, *keys: str) -> Any:
    """`root[keys[0]][keys[1]]…` through dicts and placeholders; None if it does not exist.

    >>> resolve({"a": {"b": 3}}, "a", "b")
    3
    """
    for key in keys:
        if isinstance(root, Opaque):
            root = root.state
            if isinstance(root, tuple) and len(root) == 2 and isinstance(root[1], dict):
                root = root[1]
        if isinstance(root, GlobalRef) or not isinstance(root, dict):
            return None
        root = root.get(key)
    return root


def weight_name(path: tuple[str, ...]) -> str:
    """The tensor's name without a trainer's wrapper around the state dict.

    >>> weight_name(("state_dict", "fc.weight"))
    'fc.weight'
    """
    while len(path) > 1 and path[0] in _WRAPPERS:
        path = path[1:]
    return ".".join(path)
