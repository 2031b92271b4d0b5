"""Finds what an expression refers to without running user code."""

from __future__ import annotations

import ast
import builtins
import types
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from . import sharing

__all__ = [
    "FRESH",
    "UNKNOWN",
    "Bound",
    "Env",
    "Path",
    "Super",
    "Unbound",
    "Value",
    "attribute_of",
    "element_of",
    "item_of",
    "known",
]

Path = tuple[str, ...]
"""`self.state["h"]` as ("self", "state", "['h']"): a part that can be written separately."""

_DICTS = (dict, OrderedDict, defaultdict)
_MISSING = object()


@dataclass(frozen=True, eq=False)
class Value:
    """An existing object, a result of the statements, or unknown."""

    kind: str
    obj: Any = None
    is_shared: bool = False
    """Whether it is reached through an object that a replay does not copy, so that writing to it would be visible."""
    made_by: type | None = None
    """For a result of the statements: its class, if it is not one of torch's or Python's."""
    others: tuple[Any, ...] = ()
    """Other possible values: the other layers of a list of layers."""

    @property
    def is_none(self) -> bool:
        return self.is_known and self.obj is None

    @property
    def is_known(self) -> bool:
        return self.kind == "known"


FRESH = Value("fresh")
UNKNOWN = Value("unknown")


@dataclass(frozen=True, eq=False)
class Bound:
    """A method that is implemented in C, and its object."""

    owner: Any
    name: str


@dataclass(frozen=True, eq=False)
class Unbound:
    """A method of an object that the statements create."""

    function: types.FunctionType
    owner: type


@dataclass(frozen=True, eq=False)
class Super:
    """`super()` inside of a method."""

    owner: type
    obj: Any


@dataclass
class Env:
    """The names that some code can use."""

    module_globals: dict[str, Any]
    local_names: set[str]
    """Local names; all others are global."""
    values: dict[str, Value] = field(default_factory=dict)
    cells: dict[str, Any] = field(default_factory=dict)
    """Closure variables by name; the cell shows whether two functions use the same one."""
    arguments: tuple[str, ...] = ()
    is_home: bool = False
    """Whether it is the body itself, whose current variables are known."""
    is_generator: bool = False

    def root(self, name: str) -> str:
        """A key of a variable that is equal for two functions if both use the same variable."""
        if name in self.cells:
            return f"{name}@cell{id(self.cells[name])}"
        return name if name in self.local_names else f"{name}@{id(self.module_globals)}"

    def lookup(self, name: str) -> Value:
        if name in self.values:
            return self.values[name]
        if name in self.local_names:
            return UNKNOWN
        found = self.module_globals.get(name, getattr(builtins, name, _MISSING))
        return UNKNOWN if found is _MISSING else known(found)

    def path(self, node: ast.expr) -> Path | None:
        """The path that an expression writes to or reads; None for a temporary value."""
        if isinstance(node, ast.Name):
            return (self.root(node.id),)
        if isinstance(node, ast.Starred):
            return self.path(node.value)
        if isinstance(node, ast.Attribute):
            owner = self.path(node.value)
            return owner and (*owner, node.attr)
        if isinstance(node, ast.Subscript):
            owner = self.path(node.value)
            if owner is None or not isinstance(node.slice, ast.Constant):
                return owner
            return (*owner, f"[{node.slice.value!r}]")
        return None


def known(obj: Any, is_shared: bool = False) -> Value:
    """An existing value; `is_shared`: it is reached through an object that is not copied."""
    is_ours = type(obj) in (Bound, Unbound, Super)
    return Value("known", obj, is_shared or (not is_ours and sharing.is_shared(obj)))


def attribute_of(value: Value, name: str) -> Value:
    """An attribute, if it can be read without running a property or `__getattr__`."""
    if value.made_by is not None:
        return _of_new_object(value.made_by, name)
    if not value.is_known:
        return value
    obj = value.obj
    if isinstance(obj, types.ModuleType):
        found = vars(obj).get(name, _MISSING)
        return UNKNOWN if found is _MISSING else known(found)
    if isinstance(obj, type):
        return _class_attribute(obj, name)
    if isinstance(obj, Super):
        return _of_super(obj, name)
    for home in _homes(obj):
        if name in home:
            return known(home[name], value.is_shared)
    return _from_class(obj, name, value.is_shared)


def _of_super(found: Super, name: str) -> Value:
    kinds = type(found.obj).__mro__
    for base in kinds[kinds.index(found.owner) + 1 :] if found.owner in kinds else ():
        function = base.__dict__.get(name)
        if isinstance(function, types.FunctionType):
            return known(types.MethodType(function, found.obj))
        if function is not None:
            return known(function)
    return UNKNOWN


def _of_new_object(kind: type, name: str) -> Value:
    found = _class_attribute(kind, name).obj
    if isinstance(found, types.FunctionType):
        return known(Unbound(found, kind))
    return FRESH if not callable(found) else known(found)


def _homes(obj: Any) -> list[dict[str, Any]]:
    try:
        own = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return []
    if type(own) is not dict:
        return []
    parts = [own]
    if isinstance(obj, nn.Module):
        parts += [own.get(k) or {} for k in ("_parameters", "_buffers", "_modules")]
    return parts


def _class_attribute(kind: type, name: str) -> Value:
    for base in kind.__mro__:
        found = base.__dict__.get(name, _MISSING)
        if isinstance(found, staticmethod):
            return known(found.__func__)
        if isinstance(found, classmethod):
            return known(types.MethodType(found.__func__, kind))
        if found is not _MISSING:
            return known(found, is_shared=True)
    return UNKNOWN


def _from_class(obj: Any, name: str, is_shared: bool) -> Value:
    for base in type(obj).__mro__:
        found = base.__dict__.get(name, _MISSING)
        if found is _MISSING:
            continue
        if isinstance(found, types.FunctionType):
            return known(types.MethodType(found, obj), is_shared)
        if isinstance(found, staticmethod):
            return known(found.__func__)
        if isinstance(found, classmethod):
            return known(types.MethodType(found.__func__, type(obj)))
        if isinstance(found, types.MemberDescriptorType):
            return _slot(found, obj, is_shared)
        if isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType)):
            return known(Bound(obj, name), is_shared)
        if isinstance(found, (property, types.GetSetDescriptorType)) or hasattr(found, "__get__"):
            return FRESH if isinstance(obj, (Tensor, np.ndarray)) else UNKNOWN
        return known(found, is_shared=True)  # a class variable
    return UNKNOWN


def _slot(descriptor: types.MemberDescriptorType, obj: Any, is_shared: bool) -> Value:
    try:
        return known(descriptor.__get__(obj, type(obj)), is_shared)
    except AttributeError:
        return UNKNOWN


def item_of(value: Value, index: ast.expr) -> Value:
    """`values[0]`, `state["h"]` of plain containers; a part of a tensor is a new value."""
    if not value.is_known:
        return value
    obj = value.obj
    if isinstance(obj, (Tensor, np.ndarray)):
        return FRESH
    if isinstance(index, ast.Constant):
        if type(obj) in _DICTS and index.value in obj:
            return known(obj[index.value], value.is_shared)
        place = index.value if isinstance(index.value, int) else None
        if type(obj) in (list, tuple) and place is not None and -len(obj) <= place < len(obj):
            return known(obj[place], value.is_shared)
    return element_of(value)


def element_of(value: Value) -> Value:
    """One of the items of a loop over this, if they are all of one kind."""
    if not value.is_known:
        return value
    obj = value.obj
    if isinstance(obj, (Tensor, np.ndarray, str, range)):
        return FRESH
    if type(obj) in _DICTS:
        parts = list(obj.values())
    elif isinstance(obj, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
        parts = list(obj._modules.values())
    elif type(obj) in (list, tuple, set, frozenset, deque):
        parts = list(obj)[:1000]
    else:
        return Value("unknown", None, value.is_shared)
    if not parts:
        return FRESH
    is_same = all(type(p) is type(parts[0]) for p in parts)
    if is_same or all(isinstance(p, nn.Module) for p in parts):
        return Value("known", parts[0], value.is_shared, others=tuple(parts[1:]))
    return Value("unknown", None, value.is_shared)
