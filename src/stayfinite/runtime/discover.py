"""Finds the models of an optimizer in the variables of running functions.

Only objects that the script itself can reach from there are visited, a few thousand at most.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterable, Mapping
from types import FrameType, MemberDescriptorType
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from ..patches.provenance import provenance
from .frames import calling_frames, variables
from .rng import is_kind_of_generator
from .weak import reference

__all__ = [
    "Auxiliaries",
    "Reach",
    "find_auxiliaries",
    "find_models",
    "find_optimizers",
    "find_schedulers",
    "find_stateful",
    "near_generators",
    "reachable_modules",
]

_MAX_OBJECTS = 4000
_MAX_DEPTH = 4
_MAX_PARTS = 256
_CLOSED = (
    torch.Tensor, str, bytes, int, float, bool, type(None), type, torch.optim.lr_scheduler.LRScheduler,
)  # fmt: skip
_UNOPENED = (
    "torch.utils.data", "builtins", "_io", "threading", "logging", "unittest", "_pytest", "pluggy",
)  # fmt: skip
"""No training is held there; from what a test runner holds, everything can be reached."""

_WANTED, _ITEMS, _VALUES, _ATTRIBUTES, _OPTIMIZER = 1, 2, 4, 8, 16
"""What the search does with a value: keep it, or visit its contents."""
_MAY_HOLD = (_ATTRIBUTES, _ATTRIBUTES | _WANTED | _OPTIMIZER)
"""Objects that may wrap an optimizer; an optimizer can be one, too."""


class Auxiliaries:
    """Other objects of a training: its own random generators, running averages, objects that have its optimizer, other
    modules. All are referenced weakly.
    """

    def __init__(
        self,
        generators: Iterable[Any],
        averages: Iterable[nn.Module],
        holders: Iterable[Any] = (),
        modules: Iterable[nn.Module] = (),
    ) -> None:
        self._generators = [reference(g) for g in generators]
        self._averages = [reference(m) for m in averages]
        self._holders = [reference(h) for h in holders]
        self._modules = [reference(m) for m in modules]

    @property
    def holders(self) -> list[Any]:
        return [h for ref in self._holders if (h := ref()) is not None]

    @property
    def modules(self) -> list[nn.Module]:
        return [m for ref in self._modules if (m := ref()) is not None]

    @property
    def generators(self) -> list[Any]:
        return [g for ref in self._generators if (g := ref()) is not None]

    @property
    def averages(self) -> list[nn.Module]:
        return [m for ref in self._averages if (m := ref()) is not None]


class _Roles(dict[type, int]):
    """The role of each type; a new cache for each search, so that no class is kept alive."""

    def __missing__(self, kind: type) -> int:
        role = self[kind] = _role(kind)
        return role


class _RolesOfAny(dict[type, int]):
    """The same for types that cannot be hashed."""

    def __getitem__(self, kind: type) -> int:
        return _role(kind)


def _role(kind: type) -> int:
    # A script may override `__class__` of a value, but not its type.
    if issubclass(kind, _CLOSED):
        return 0
    if issubclass(kind, nn.Module):
        return _WANTED
    if kind is list or kind is tuple:
        return _ITEMS
    if kind is dict:
        return _VALUES
    role = _WANTED if is_kind_of_generator(kind) else 0
    if issubclass(kind, torch.optim.Optimizer):
        role = _WANTED | _OPTIMIZER
    return role if str(kind.__module__).startswith(_UNOPENED) else role | _ATTRIBUTES


class Reach:
    """The objects that the running functions can reach. Their own variables are searched first.

    With `moved`, the parameters of optimizers, the search ends after the variables and the module-level names if these contain
    all of them. That is fast, and a complete search has to follow later.
    """

    def __init__(
        self, frame: FrameType | None, moved: Iterable[torch.Tensor] | None = None
    ) -> None:
        self._found: dict[int, tuple[str, Any]] = {}
        self._holders: list[Any] = []
        self._slots: dict[int, list[tuple[str, MemberDescriptorType]]] = {}
        self._roles: dict[type, int] = _Roles()
        self._seen: set[int] = set()
        self.is_whole = moved is None
        frames = calling_frames(frame)
        self.walk([pair for f in frames for pair in variables(f).items()])
        scopes = {id(f.f_globals): list(f.f_globals.items()) for f in frames}
        names = [pair for scope in scopes.values() for pair in scope]
        if moved is not None:
            self._keep_of(names)
            self.is_whole = not self._hold({id(p) for p in moved})
        if self.is_whole:
            self.walk(names)
        self.modules = _outermost(self._modules())
        """(name, module): the outermost modules, nearest first."""

    def _modules(self) -> list[tuple[str, nn.Module]]:
        modules = [(n, v) for n, v in self._found.values() if issubclass(type(v), nn.Module)]
        return [(n, m) for n, m in modules if _is_whole(m)]

    @property
    def optimizers(self) -> list[Any]:
        kind = torch.optim.Optimizer
        return [v for _, v in self._found.values() if issubclass(type(v), kind)]

    @property
    def auxiliaries(self) -> Auxiliaries:
        values = [v for _, v in self._found.values()]
        modules = [m for _, m in self.modules]
        averages = [m for m in modules if isinstance(m, AveragedModel)]
        others = [m for m in modules if not isinstance(m, AveragedModel)]
        generators = (v for v in values if is_kind_of_generator(type(v)))
        return Auxiliaries(generators, averages, self._holders, others)

    def _hold(self, wanted: set[int]) -> bool:
        return wanted <= {id(p) for _, m in self._modules() for p in m.parameters()}

    def _keep_of(self, names: list[tuple[str, Any]]) -> None:
        for name, value in names:
            if self._roles[type(value)] & _WANTED:
                self._found.setdefault(id(value), (name, value))

    def walk(self, names: Iterable[tuple[str, Any]]) -> None:
        """Search breadth first, so that the shortest path to an object determines its name."""
        names = list(names)
        try:
            self._walk(names)
        except TypeError:  # a metaclass may forbid hashing
            self._roles, self._seen = _RolesOfAny(), set()
            self._walk(names)

    def _walk(self, names: list[tuple[str, Any]]) -> None:
        roles, seen = self._roles, self._seen
        todo = deque((n, v, 0) for n, v in names if not n.startswith("__"))
        while todo and len(seen) < _MAX_OBJECTS:
            name, value, depth = todo.popleft()
            role = roles[type(value)]
            if not role or id(value) in seen:
                continue
            seen.add(id(value))
            if role & _WANTED:
                self._found.setdefault(id(value), (name, value))
            if depth < _MAX_DEPTH and role != _WANTED:
                depth += 1
                if role == _ITEMS:
                    todo += [(name, v, depth) for v in value[:_MAX_PARTS] if roles[type(v)]]
                    continue
                inside = value if role == _VALUES else self._attributes(value)
                first = list(itertools.islice(inside.items(), _MAX_PARTS))
                if role in _MAY_HOLD and self._moves_with(value, [v for _, v in first]):
                    self._holders.append(value)
                todo += [(str(key), v, depth) for key, v in first if roles[type(v)]]

    def _moves_with(self, value: Any, held: list[Any]) -> bool:
        """Whether an object steps an optimizer or sets its rate: it has an optimizer, and no other part of a training."""
        roles = self._roles
        firsts = [_first_of(v) for v in held]
        if not any(roles[type(v)] & _OPTIMIZER for v in firsts):
            return False
        kind = type(value)
        if str(kind.__module__).partition(".")[0] in ("torch", "stayfinite"):
            return False
        others = (nn.Module, torch.utils.data.DataLoader)
        if any(issubclass(type(v), others) for v in firsts):
            return False
        return any("step" in name for name in dir(kind))

    def _attributes(self, value: Any) -> dict[Any, Any]:
        """The attributes, including those in `__slots__`."""
        try:
            inside = object.__getattribute__(value, "__dict__")
        except (AttributeError, TypeError):
            inside = {}
        if not isinstance(inside, dict):
            return {}
        slots = self._slots.get(id(type(value)))
        if slots is None:
            slots = self._slots[id(type(value))] = _slots_of(type(value))
        if not slots:
            return inside
        found = dict(inside)
        for name, slot in slots:
            with contextlib.suppress(AttributeError):  # not set yet
                found[name] = slot.__get__(value)
        return found


def _slots_of(kind: type) -> list[tuple[str, MemberDescriptorType]]:
    """The slots of classes that define `__slots__`, but not of those written in C."""
    own = [vars(cls) for cls in kind.__mro__ if "__slots__" in vars(cls)]
    pairs = [pair for names in own for pair in names.items()]
    return [(name, slot) for name, slot in pairs if type(slot) is MemberDescriptorType]


def _first_of(value: Any) -> Any:
    """A representative of the contents of a container."""
    if type(value) in (list, tuple) and value:
        return value[0]
    return next(iter(value.values())) if type(value) is dict and value else value


def reachable_modules(frame: FrameType | None) -> list[tuple[str, nn.Module]]:
    """(name, module): the outermost reachable modules, nearest first."""
    return Reach(frame).modules


def find_auxiliaries(frame: FrameType | None) -> Auxiliaries:
    """The other objects of a training."""
    return Reach(frame).auxiliaries


def find_optimizers(frame: FrameType | None, names: Mapping[str, Any] | None = None) -> list[Any]:
    """Reachable optimizers, or those in the given variables, that were made before the patches."""
    given = Reach(None)
    given.walk((names or {}).items())
    return Reach(frame).optimizers + given.optimizers


def near_generators(frame: FrameType | None) -> list[Any]:
    """Random generators in the variables of the running functions: a loop may make new ones in each epoch."""
    frames = calling_frames(frame)
    scopes = [*map(variables, frames), *(f.f_globals for f in frames[:1])]
    is_one: dict[int, bool] = {}
    found = {}
    for value in (v for scope in scopes for v in list(scope.values())):
        kind = type(value)
        if id(kind) not in is_one:
            is_one[id(kind)] = is_kind_of_generator(kind)
        if is_one[id(kind)]:
            found[id(value)] = value
    return list(found.values())


def find_schedulers(frame: FrameType | None) -> list[Any]:
    """Schedulers in the variables of the running functions, which were unpickled or made before the patches."""
    kinds = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    scopes = [s for f in calling_frames(frame) for s in (variables(f), f.f_globals)]
    found = [v for scope in scopes for v in list(scope.values()) if issubclass(type(v), kinds)]
    return list({id(v): v for v in found}.values())


def _is_whole(module: nn.Module) -> bool:
    """Whether its `__init__` was completed."""
    return "_parameters" in module.__dict__ and "_modules" in module.__dict__


def _outermost(found: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    inner = {id(m) for _, module in found for m in module.modules() if m is not module}
    return [(n, m) for n, m in found if id(m) not in inner]


def find_models(
    optimizers: Iterable[Any], modules: list[tuple[str, nn.Module]]
) -> list[tuple[str, nn.Module]]:
    """The reachable modules that have the parameters of these optimizers.

    If an optimizer updates tensors of no module, they may be float32 copies of a half-precision model's weights. Then every other
    trained module (not a frozen teacher, not an average) counts as a model too.
    """
    moved = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
    held = [(name, m, list(m.parameters())) for name, m in modules]
    if moved <= {id(p) for _, _, params in held for p in params}:
        return [(n, m) for n, m, params in held if any(id(p) in moved for p in params)]
    averages = list(provenance.averages)
    return [
        (n, m)
        for n, m, params in held
        if any(id(p) in moved for p in params)
        or (any(_is_trained(p) for p in params) and not any(m is a for a in averages))
    ]


def _is_trained(parameter: torch.Tensor) -> bool:
    return parameter.requires_grad and parameter.is_floating_point()


def find_stateful(modules: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The reachable modules without parameters that have floating-point buffers: a loss with a running center.

    Their buffers are state of the training, so a skipped step must leave no NaN in them.
    """
    return [
        (n, m)
        for n, m in modules
        if next(m.parameters(), None) is None and any(b.is_floating_point() for b in m.buffers())
    ]
