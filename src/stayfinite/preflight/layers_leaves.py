"""Finds trainable tensors anywhere: attributes, lists, closures."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from ..locate.frames import is_user_file

__all__ = ["reachable_leaves", "user_variables"]

_DEPTH = 7
_MOST_OBJECTS = 20_000
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")
_FOREIGN = ("torch", "numpy", "builtins", "typing", "collections", "_thread", "threading")


def reachable_leaves(roots: Mapping[str, Any]) -> dict[str, Tensor]:
    """Leaves that require grad, by the path that reaches them; registered parameters too.

    >>> import torch
    >>> weights = [torch.rand(2, requires_grad=True)]
    >>> def loss_fn(model, batch):
    ...     return (batch * weights[0]).sum()
    >>> list(reachable_leaves({"loss_fn": loss_fn}))
    ['loss_fn: weights[0]']
    """
    walk = _Walk()
    for name, value in roots.items():
        walk.visit(name, value, 0)
    return walk.found


def user_variables() -> dict[str, Any]:
    """The variables of the user's own running functions, inner ones first."""
    found: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            for scope in (frame.f_locals, frame.f_globals):
                for name, value in list(scope.items()):
                    if not name.startswith("__"):
                        found.setdefault(name, value)
        frame = frame.f_back
    return found


class _Walk:
    def __init__(self) -> None:
        self.found: dict[str, Tensor] = {}
        self._seen: set[int] = set()
        self._kept: list[Any] = []

    def visit(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, Tensor):
            if value.requires_grad and value.is_leaf and id(value) not in self._seen:
                self._seen.add(id(value))
                self.found[path] = value
            return
        if depth > _DEPTH or id(value) in self._seen or len(self._seen) > _MOST_OBJECTS:
            return
        if value is None or isinstance(value, (str, bytes, int, float, type, types.ModuleType)):
            return
        self._seen.add(id(value))
        self._kept.append(value)  # an id stays one object's only as long as the object lives
        for part, item in _parts(path, value):
            self.visit(part, item, depth + 1)


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{path}[{k!r}]", v) for k, v in list(value.items()))
    elif isinstance(value, (list, tuple)):
        yield from ((f"{path}[{i}]", v) for i, v in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((path, v) for v in list(value))
    elif isinstance(value, types.MethodType):
        yield f"{path}: self", value.__self__
        yield path, value.__func__
    elif isinstance(value, types.FunctionType):
        yield from _of_function(path, value)
    elif isinstance(value, nn.Module):
        yield from _of_module(path, value)
    elif hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
        yield path, value.func
        yield path, (*value.args, *value.keywords.values())
    elif type(value).__module__.partition(".")[0] not in _FOREIGN:
        yield from _of_object(path, value)


def _of_function(path: str, value: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
        try:
            yield f"{path}: {name}", cell.cell_contents
        except ValueError:
            continue  # the variable has no value yet
    for name in value.__code__.co_names:
        if name in value.__globals__:
            yield f"{path}: {name}", value.__globals__[name]
    yield f"{path}: defaults", (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())


def _of_module(path: str, value: nn.Module) -> Iterator[tuple[str, Any]]:
    at = f"{path}." if path else ""
    for part in _MODULE_PARTS:
        yield from ((f"{at}{k}", v) for k, v in vars(value).get(part, {}).items())
    own = {k: v for k, v in vars(value).items() if k not in _MODULE_PARTS and "hooks" not in k}
    yield from ((f"{at}{k}", v) for k, v in own.items())


def _of_object(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    try:
        attributes = dict(vars(value))
    except TypeError:
        return
    yield from ((f"{path}.{k}", v) for k, v in attributes.items())
