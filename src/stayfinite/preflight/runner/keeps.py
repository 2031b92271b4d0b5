"""Restores the Python state of a training's own code: counters, lists, caches, replaced buffers.

A step that counts itself in an attribute, a closure or a global behaves differently the next time. Probes run a step hundreds of
times, so this state is saved and restored with the tensors.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...locate.frames import is_user_file

__all__ = ["Keeps", "Undo"]

Undo = Callable[[], None]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MOST_HOLDERS = 200
_MOST_ITEMS = 4096
"""Longer lists are data, which a step does not change."""
_MOST_VALUES = 1 << 20
_OF_MODULES = frozenset(vars(nn.Module()))
_GONE: Any = object()


class Keeps:
    """All such state that is reachable from the models and the loss function.

    >>> count = {"steps": 0}
    >>> def loss_fn() -> None:
    ...     count["steps"] += 1
    >>> undo = Keeps([], [loss_fn]).note()
    >>> loss_fn()
    >>> undo()
    >>> count
    {'steps': 0}
    """

    def __init__(self, modules: Iterable[nn.Module], functions: Iterable[Any] = ()) -> None:
        self._buffered: list[nn.Module] = []
        self._holders: list[Any] = []
        self._cells: list[types.CellType] = []
        self._globals: list[tuple[dict[str, Any], str]] = []
        self._seen: set[int] = set()
        for module in modules:
            self._module(module)
        for function in functions:
            self._value(function)

    def note(self) -> Undo:
        """Save everything; returns the undo function."""
        undos = [_of_buffers(m) for m in self._buffered if m._buffers]
        undos += [_of_holder(h) for h in self._holders]
        undos += [_of_cell(c) for c in self._cells]
        undos += [_of_entry(home, name) for home, name in self._globals]

        def undo() -> None:
            for each in undos:
                each()

        return undo

    def _module(self, root: nn.Module) -> None:
        for m in root.modules():
            if id(m) in self._seen:
                continue
            self._seen.add(id(m))
            self._buffered.append(m)
            if _is_own(type(m)):
                self._holders.append(m)
                self._value(getattr(type(m), "forward", None))
                for value in list(vars(m).values()):
                    self._value(value, is_inside=True)

    def _value(self, value: Any, is_inside: bool = False) -> None:
        """A function, a method or an object that the training's own code holds."""
        if len(self._seen) >= _MOST_HOLDERS and not isinstance(value, nn.Module):
            return
        if isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, types.MethodType):
            self._value(value.__self__)
            self._value(value.__func__)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif not isinstance(value, type) and _is_own(type(value)) and hasattr(value, "__dict__"):
            if id(value) in self._seen:
                return
            self._seen.add(id(value))
            self._holders.append(value)
            call = None if is_inside else getattr(type(value), "__call__", None)  # noqa: B004
            for inner in (call, *vars(value).values()):
                self._value(inner, is_inside=True)

    def _function(self, function: types.FunctionType) -> None:
        if id(function) in self._seen or not is_user_file(function.__code__.co_filename):
            return
        self._seen.add(id(function))
        self._holders.append(function)
        for cell in function.__closure__ or ():
            content = _content(cell)
            if content is _GONE:
                continue
            self._cells.append(cell)
            self._value(content)
        for name in _names(function.__code__):
            if name in function.__globals__:
                self._globals.append((function.__globals__, name))
                self._value(function.__globals__[name])


def _is_own(cls: type) -> bool:
    """A class of the user's: no part of torch, of Python or of another library that keeps its own house."""
    home = cls.__module__.partition(".")[0]
    return home not in (
        "builtins",
        "collections",
        "torch",
        "numpy",
        "types",
        "functools",
        "stayfinite",
    )


def _names(code: types.CodeType) -> Iterator[str]:
    """The globals that a function and those inside it name."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _GONE


def _of_buffers(module: nn.Module) -> Undo:
    """The very tensors that are its buffers; what they hold is put back with the model's state."""
    kept = dict(module._buffers)

    def undo() -> None:
        if module._buffers.keys() != kept.keys() or any(
            module._buffers[n] is not t for n, t in kept.items()
        ):
            module._buffers.clear()
            module._buffers.update(kept)

    return undo


def _of_holder(holder: Any) -> Undo:
    skip = _OF_MODULES if isinstance(holder, nn.Module) else frozenset()
    home = vars(holder)
    names = set(home)
    kept = {k: put for k, v in home.items() if k not in skip and (put := _kept(v)) is not None}

    def undo() -> None:
        for name in [n for n in home if n not in names]:
            del home[name]
        for name, put in kept.items():
            home[name] = put()

    return undo


def _of_cell(cell: types.CellType) -> Undo:
    put = _kept(_content(cell))

    def undo() -> None:
        if put is not None:
            cell.cell_contents = put()

    return undo


def _of_entry(home: dict[str, Any], name: str) -> Undo:
    put = _kept(home.get(name, _GONE))

    def undo() -> None:
        if put is not None:
            home[name] = put()

    return undo


def _kept(value: Any) -> Callable[[], Any] | None:
    """A function that restores this value, the same object with its contents; None for other types."""
    if isinstance(value, _PLAIN):
        return lambda: value
    if isinstance(value, Tensor):
        return _kept_tensor(value)
    if type(value) in (list, dict, set) and len(value) <= _MOST_ITEMS:
        return _kept_items(value)
    if isinstance(value, tuple) and all(isinstance(v, _PLAIN) for v in value):
        return lambda: value
    return None


def _kept_tensor(value: Tensor) -> Callable[[], Any] | None:
    is_simple = type(value) is Tensor and value.layout is torch.strided and value.is_leaf
    if not is_simple or value.requires_grad or value.numel() > _MOST_VALUES:
        return lambda: value
    held, version = value.detach().clone(), value._version

    def put() -> Tensor:
        if value._version != version:
            with torch.no_grad():
                value.copy_(held)
        return value

    return put


def _kept_items(value: Any) -> Callable[[], Any]:
    is_dict = isinstance(value, dict)
    keys = list(value)
    items = list(value.values()) if is_dict else keys
    puts = [put for v in items if (put := _kept(v)) is not None]

    def put_all() -> Any:
        for put in puts:
            put()  # the same object, or a plain value that is what it was
        now = list(value.values()) if is_dict else list(value)
        if len(now) == len(items) and all(a is b for a, b in zip(now, items)):
            return value  # somebody may be walking through it
        value.clear()
        if is_dict:
            value.update(zip(keys, items))
        elif isinstance(value, set):
            value.update(items)
        else:
            value.extend(items)
        return value

    return put_all
