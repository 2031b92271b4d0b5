"""Copies of the variables, so that a replay writes only to copies.

Containers, plain objects, modules and functions are copied; tensors are shared, so that gradients reach their parameters.
Objects of the training, and those with external effects, are shared too, because the statements of a replay do not write to
them.
"""

from __future__ import annotations

import array
import contextlib
import copy
import functools
import random
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...patches.manager import patched, unpatched
from .classes import of_copied_class, own_members
from .effects import holds_user_code
from .hooks import hooks_of, hooks_of_every_module, replaced
from .own_code import STEPPED, give_copies, has_own_class, stand_in, with_copied_classes
from .sharing import is_shared
from .source import current_code, file_kind, names_of

__all__ = ["Copier"]

_MAX_OBJECTS = 50_000
_MAX_ITEMS = 10_000
_MAX_DEPTH = 60
_MAX_ARRAY_BYTES = 16 * 2**20
_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device,
    torch.Size, Tensor, type, types.BuiltinFunctionType, types.CodeType,
)  # fmt: skip


_CLASSES = (type(torch.autograd.Function), type(Tensor), type(nn.Parameter))
_ATOMS_WITH_CODE = (types.BuiltinFunctionType, *_CLASSES)

_PLAIN = (list, dict, tuple, set, frozenset, OrderedDict, deque)
"""Types with nothing but their items."""

clones: dict[int, int] = {}
"""The identity of each module or optimizer that a copy stands for, by that of the copy; of the run under way."""


class Copier:
    """Copies everything at most once, so that identities are preserved."""

    def __init__(
        self,
        code_for: Callable[[types.CodeType], types.CodeType] = lambda code: code,
        is_training_object: Callable[[object], bool] = lambda obj: False,
    ) -> None:
        self._code_for = code_for
        self._is_training_object = is_training_object
        # The caller restores the global random state, so these are the original generators.
        self._memo: dict[int, Any] = {id(g): g for g in _global_generators()}
        self._alive: list[Any] = []
        # Parameters with hooks or a class of their own: these are not copied.
        self._hooked: list[Tensor] = []
        self._classed: list[Tensor] = []
        self._depth = 0
        self._slots: dict[type, list[types.MemberDescriptorType]] = {}
        self._methods: dict[type, list[tuple[str, types.FunctionType]]] = {}
        self._spaces: dict[int, tuple[dict[str, Any], dict[str, Any], set[str]]] = {}

    def copy(self, value: Any) -> Any:
        """The copy of a value; the value itself if it must not be copied."""
        if isinstance(value, _ATOMS) and type(value) not in _ATOMS_WITH_CODE:
            return of_copied_class(value, self.copy) if isinstance(value, Tensor) else value
        if id(value) in self._memo:
            return self._memo[id(value)]
        if isinstance(value, STEPPED):
            return self._stepped(value)
        if len(self._memo) >= _MAX_OBJECTS or self._depth >= _MAX_DEPTH or self._is_shared(value):
            return value
        self._depth += 1
        try:
            return self._copy(value)
        finally:
            self._depth -= 1

    def globals(self, original: dict[str, Any], names: set[str]) -> dict[str, Any]:
        """A module's variables for code that uses these names; others are there as they are."""
        if id(original) not in self._spaces:
            self._spaces[id(original)] = (original, dict(original), set())
        _, space, done = self._spaces[id(original)]
        new = [n for n in names - done if n in original]
        done |= names
        for name in new:
            space[name] = self.copy(original[name])
        return space

    @contextlib.contextmanager
    def with_own_code(self) -> Iterator[None]:
        """In this context, copies of the user's code run on weights, which are not copied."""
        hooks = [found for p in self._hooked for found in hooks_of(p)]
        with contextlib.ExitStack() as stack:
            stack.enter_context(with_copied_classes(self._classed, self.copy))
            stack.enter_context(replaced([*hooks, *hooks_of_every_module()], self.copy))
            yield

    def _keep(self, value: Any, new: Any) -> Any:
        self._memo[id(value)] = new
        self._alive.append(value)  # else another object might get its id
        return new

    def _is_shared(self, value: Any) -> bool:
        if type(value) in (*_CLASSES, weakref.ref):
            return False
        if is_shared(value):
            return True
        return type(value) not in _PLAIN and self._is_training_object(value)

    def _copy(self, value: Any) -> Any:
        kind = type(value)
        if kind in _EXACT:
            return _EXACT[kind](self, value)
        for base, make in _BY_BASE.items():
            if issubclass(kind, base):
                return make(self, value)
        return self._object(value)

    def _stepped(self, value: Any) -> Any:
        """An optimizer or a scheduler is not copied, but what it has of the user's code is."""
        new = stand_in(value)
        if new is not value:
            self._keep(value, new)
            clones[id(new)] = id(value)
            give_copies(new, self.copy)
        return new

    def _reference(self, value: Any) -> Any:
        """A scheduler's patch of `step` knows its optimizer weakly."""
        target = value()
        new = self.copy(target) if isinstance(target, STEPPED) else target
        return value if new is target else self._keep(value, weakref.ref(new))

    def _list(self, value: list[Any]) -> Any:
        new = self._keep(value, _bare(value) if type(value) is not list else [])
        list.extend(new, self._items(value))
        return self._attributes(value, new)

    def _items(self, value: Any) -> list[Any]:
        parts = list(value)
        return parts if len(parts) > _MAX_ITEMS else [self.copy(p) for p in parts]

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        parts = self._items(value)
        if all(a is b for a, b in zip(parts, value)):
            return self._keep(value, value)
        return self._keep(value, tuple.__new__(type(value), parts))

    def _dict(self, value: dict[Any, Any]) -> Any:
        kind = type(value)
        if kind is defaultdict:
            new: Any = defaultdict(self.copy(value.default_factory))  # type: ignore[attr-defined]
        else:
            new = kind() if kind in (dict, OrderedDict, Counter) else _bare(value)
        self._keep(value, new)
        put = OrderedDict.__setitem__ if isinstance(value, OrderedDict) else dict.__setitem__
        is_large = len(value) > _MAX_ITEMS
        for key, item in list(dict.items(value)):
            put(
                new,
                key if isinstance(key, str) else self.copy(key),
                item if is_large else self.copy(item),
            )
        return self._attributes(value, new)

    def _set(self, value: set[Any]) -> Any:
        new = self._keep(value, set() if type(value) is set else _bare(value))
        set.update(new, self._items(value))
        return self._attributes(value, new)

    def _frozenset(self, value: frozenset[Any]) -> Any:
        return self._keep(value, frozenset(self._items(value)))

    def _deque(self, value: deque[Any]) -> Any:
        new: Any = self._keep(value, deque(maxlen=value.maxlen))
        new.extend(self._items(value))
        return new

    def _bytes(self, value: Any) -> Any:
        return self._keep(value, value[:])

    def _array(self, value: np.ndarray[Any, Any]) -> Any:
        if value.dtype.hasobject or value.nbytes > _MAX_ARRAY_BYTES:
            new = value.view()
            new.flags.writeable = False
            return self._keep(value, new)
        return self._keep(value, value.copy())

    def _generator(self, value: Any) -> Any:
        if isinstance(value, torch.Generator):
            return self._keep(value, value.clone_state())
        return self._keep(value, copy.deepcopy(value))

    def _partial(self, value: functools.partial[Any]) -> Any:
        words = {k: self.copy(v) for k, v in value.keywords.items()}
        new = functools.partial(self.copy(value.func), *self._items(value.args), **words)
        return self._keep(value, new)

    def _method(self, value: types.MethodType) -> Any:
        return self._keep(
            value, types.MethodType(self.copy(value.__func__), self.copy(value.__self__))
        )

    def _builtin(self, value: types.BuiltinFunctionType) -> Any:
        """`add = parts.append`: bind the method to the copy."""
        owner = value.__self__
        if owner is None or isinstance(owner, (types.ModuleType, type)):
            return value
        new = self.copy(owner)
        return value if new is owner else self._keep(value, getattr(new, value.__name__))

    def _cell(self, value: Any) -> Any:
        new = self._keep(value, types.CellType())
        with contextlib.suppress(ValueError):  # empty
            new.cell_contents = self.copy(value.cell_contents)
        return new

    def _function(self, value: types.FunctionType) -> Any:
        """A user's function with copies of its globals and of its closure."""
        original = unpatched(value)
        if original is not value:
            copied = self.copy(original)
            return value if copied is original else self._keep(value, patched(value, copied))
        is_user = file_kind(value.__code__.co_filename) == "user"
        if not is_user and value.__closure__ is None:
            return value
        code = self._code_for(value.__code__) if is_user else value.__code__
        cells = dict(zip(value.__code__.co_freevars, value.__closure__ or ()))
        if not is_user and not holds_user_code(cells.values()):
            return value
        space = self.globals(value.__globals__, set()) if is_user else value.__globals__
        closure = tuple(self.copy(cells[n]) for n in code.co_freevars)
        new = types.FunctionType(code, space, value.__name__, value.__defaults__, closure)
        self._keep(value, new)
        new.__kwdefaults__ = self.copy(value.__kwdefaults__)
        new.__defaults__ = self.copy(value.__defaults__)
        new.__qualname__, new.__module__ = value.__qualname__, value.__module__
        new.__dict__.update({k: self.copy(v) for k, v in value.__dict__.items()})
        if is_user:
            self.globals(value.__globals__, names_of(code))
        return new

    def _class(self, value: Any) -> Any:
        """One that torch calls: its methods are the user's, and see copies of its globals and of its own."""
        made = own_members(self._keep(value, value), self.copy)
        if not made:
            return value
        own = {"__module__": value.__module__, "__qualname__": value.__qualname__}
        new = type(value)(value.__name__, (value,), {**own, **made})
        for _, space, names in self._spaces.values():  # its methods may refer to it by name
            space.update({n: new for n in names if space.get(n) is value})
        return self._keep(value, new)

    def _module(self, value: nn.Module) -> Any:
        original = value.__dict__.get("_modules", {}).get("_orig_mod")
        if original is not None and type(value).__name__ == "OptimizedModule":
            return self._keep(value, self.copy(original))
        new = self._keep(value, _bare(value))
        clones[id(new)] = id(value)
        parameters = value.__dict__.get("_parameters", {}).values()
        self._hooked += [p for p in parameters if hooks_of(p)]
        self._classed += [p for p in parameters if has_own_class(p)]
        for name, part in list(value.__dict__.items()):
            new.__dict__[name] = self.copy(part)
        self._protect_methods(value, new)
        return new

    def _user_module(self, value: types.ModuleType) -> Any:
        """`import helpers; helpers.loss(x)`: the module copy has copies of its functions."""
        new = self._keep(value, types.ModuleType(value.__name__, value.__doc__))
        names = {n for n in vars(value) if not n.startswith("__")}
        new.__dict__.update(self.globals(vars(value), names))
        return new

    def _object(self, value: Any) -> Any:
        try:
            new = object.__new__(type(value))
        except TypeError:  # made in C
            return value
        self._keep(value, new)
        self._attributes(value, new)
        self._protect_methods(value, new)
        return new

    def _attributes(self, value: Any, new: Any) -> Any:
        if type(value) in _PLAIN:
            return new
        own = getattr(value, "__dict__", None) if hasattr(type(value), "__dict__") else None
        if type(own) is dict and type(getattr(new, "__dict__", None)) is dict:
            for name, part in list(own.items()):
                new.__dict__[name] = self.copy(part)
        for slot in self._slots_of(type(value)):
            self._slot(slot, value, new)
        return new

    def _slots_of(self, kind: type) -> list[types.MemberDescriptorType]:
        if kind not in self._slots:
            self._slots[kind] = [
                slot
                for base in kind.__mro__
                for slot in list(base.__dict__.values())
                if isinstance(slot, types.MemberDescriptorType) and base is not object
            ]
        return self._slots[kind]

    def _slot(self, slot: types.MemberDescriptorType, value: Any, new: Any) -> None:
        with contextlib.suppress(AttributeError, TypeError):  # empty, or read-only
            slot.__set__(new, self.copy(slot.__get__(value, type(value))))

    def _protect_methods(self, value: Any, new: Any) -> None:
        """Put methods that use globals, or are cut, on the copy itself: the class is unchanged."""
        own = getattr(new, "__dict__", None)
        if type(own) is not dict:
            return
        for name, method in self._methods_of(type(value)):
            if name not in own:
                self._protect(name, method, new)

    def _methods_of(self, kind: type) -> list[tuple[str, types.FunctionType]]:
        """Methods of this class that are called by name, and may use globals."""
        if kind not in self._methods:
            self._methods[kind] = [
                (name, method)
                for i, base in enumerate(kind.__mro__)
                for name, method in list(base.__dict__.items())
                if isinstance(method, types.FunctionType)
                and not (name.startswith("__") and name.endswith("__"))
                and i == _home_index(kind, name)
                and (
                    file_kind(method.__code__.co_filename) == "user"
                    or "__wrapped__" in vars(method)
                )
            ]
        return self._methods[kind]

    def _protect(self, name: str, method: types.FunctionType, new: Any) -> None:
        code = method.__code__
        is_wrapped = file_kind(code.co_filename) != "user"
        if is_wrapped and "__wrapped__" not in method.__dict__:
            return
        if is_wrapped or self._code_for(code) is not code or self._sees_globals(method):
            bound = self.copy(method)
            if bound is not method:
                new.__dict__[name] = types.MethodType(bound, new)

    def _sees_globals(self, method: types.FunctionType) -> bool:
        space = method.__globals__
        for name in names_of(current_code(method.__code__)):
            value = space.get(name)
            if value is not None and not isinstance(value, _ATOMS):
                return True
            if name in space and isinstance(value, (int, float, str, Tensor)):
                return True
        return method.__closure__ is not None


def _global_generators() -> list[Any]:
    return [random._inst, np.random.mtrand._rand, torch.default_generator]


def _bare(value: Any) -> Any:
    """A new object of the same class, without calling `__init__`."""
    for base in (nn.Module, OrderedDict, defaultdict, dict, list, set, deque):
        if isinstance(value, base):
            maker: Any = object if base is nn.Module else base
            return maker.__new__(type(value))
    return object.__new__(type(value))


def _home_index(kind: type, name: str) -> int:
    return next(i for i, base in enumerate(kind.__mro__) if name in base.__dict__)


_EXACT: dict[type, Callable[[Copier, Any], Any]] = {
    list: Copier._list, dict: Copier._dict, tuple: Copier._tuple, set: Copier._set,
    frozenset: Copier._frozenset, deque: Copier._deque, bytearray: Copier._bytes,
    array.array: Copier._bytes, types.FunctionType: Copier._function,
    types.MethodType: Copier._method, types.BuiltinFunctionType: Copier._builtin,
    types.CellType: Copier._cell, functools.partial: Copier._partial, **dict.fromkeys(_CLASSES, Copier._class),
    weakref.ref: Copier._reference, types.ModuleType: Copier._user_module, torch.Generator: Copier._generator, random.Random: Copier._generator,
    np.random.Generator: Copier._generator, np.random.RandomState: Copier._generator,
}  # fmt: skip
_BY_BASE: dict[type, Callable[[Copier, Any], Any]] = {
    nn.Module: Copier._module, np.ndarray: Copier._array, dict: Copier._dict, list: Copier._list,
    tuple: Copier._tuple, set: Copier._set,
}  # fmt: skip
