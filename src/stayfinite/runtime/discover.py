"""Which models does an optimizer move? Found from the variables of the functions that are running.

Only what the script itself can reach from there is looked at, a few thousand objects at the most;
the objects of the rest of the process are nobody's business.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from ..patches.provenance import provenance
from .frames import calling_frames, variables
from .rng import is_generator

__all__ = [
    "find_beside",
    "find_models",
    "find_optimizers",
    "find_schedulers",
    "find_stateful",
    "reachable_modules",
]

_MAX_OBJECTS = 4000
_MAX_DEPTH = 4
_MAX_PARTS = 256
_CLOSED = (
    torch.Tensor, str, bytes, int, float, bool, type(None), type, torch.optim.lr_scheduler.LRScheduler,
)  # fmt: skip


_ATOMS = frozenset((*_CLOSED[:-1], nn.Parameter))


def reachable_modules(frame: FrameType | None) -> list[tuple[str, nn.Module]]:
    """(what it is called, the module): the outermost modules within reach, nearest first."""
    return _modules(_reachable(frame))


def _modules(found: Iterable[tuple[str, Any]]) -> list[tuple[str, nn.Module]]:
    modules = [(n, v) for n, v in found if issubclass(type(v), nn.Module)]
    return _outermost([(n, m) for n, m in modules if _is_whole(m)])


def find_optimizers(frame: FrameType | None, names: Mapping[str, Any] | None = None) -> list[Any]:
    """Optimizers that were made before anybody watched, within reach of the running functions or of
    variables that are given by name."""
    given = [(n, v, 0) for n, v in (names or {}).items()]
    found = itertools.chain(_reachable(frame), _walk(deque(given)))
    return [v for _, v in found if issubclass(type(v), torch.optim.Optimizer)]


def find_schedulers(frame: FrameType | None) -> list[Any]:
    """Schedulers among the variables of the running functions: one that comes out of a pickle, or was
    made before anybody watched."""
    kinds = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    scopes = [s for f in calling_frames(frame) for s in (variables(f), f.f_globals)]
    found = [v for scope in scopes for v in list(scope.values()) if isinstance(v, kinds)]
    return list({id(v): v for v in found}.values())


def find_beside(frame: FrameType | None) -> tuple[list[Any], list[nn.Module]]:
    """What a training has beside its model, in one walk: sources of random numbers that it has made for
    itself, and running averages of the weights."""
    found = list(_reachable(frame))
    generators = {id(v): v for _, v in found if is_generator(v)}
    averages: list[nn.Module] = [m for _, m in _modules(found) if isinstance(m, AveragedModel)]
    return list(generators.values()), averages


def _reachable(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Objects within reach of the functions that are running, each with a name."""
    todo: deque[tuple[str, Any, int]] = deque()
    for each in calling_frames(frame):
        scope = variables(each)
        names = {**each.f_globals, **scope} if scope is not each.f_globals else scope
        todo.extend((n, v, 0) for n, v in names.items() if not n.startswith("__"))
    return _walk(todo)


def _walk(todo: deque[tuple[str, Any, int]]) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    while todo and len(seen) < _MAX_OBJECTS:
        name, value, depth = todo.popleft()
        if isinstance(value, _CLOSED) or id(value) in seen:
            continue
        seen.add(id(value))
        yield name, value
        if depth < _MAX_DEPTH and not issubclass(type(value), nn.Module):
            depth += 1
            for n, v in _parts(name, value):
                if type(v) not in _ATOMS:  # most of what is held is one
                    todo.append((n, v, depth))


def _parts(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    kind = type(value)
    if kind is list or kind is tuple:
        return [(name, part) for part in value[:_MAX_PARTS]]
    inside: Any = value
    if kind is not dict:
        if kind.__module__.startswith(("torch.utils.data", "builtins", "_io", "threading")):
            return ()
        try:
            inside = object.__getattribute__(value, "__dict__")
        except (AttributeError, TypeError):
            return ()
        if not isinstance(inside, dict):
            return ()
    first = list(itertools.islice(inside.items(), _MAX_PARTS))
    return [(str(key), part) for key, part in first if type(part) not in _ATOMS]


def _is_whole(module: nn.Module) -> bool:
    """Not one whose `__init__` has raised before it was made."""
    return "_parameters" in module.__dict__ and "_modules" in module.__dict__


def _outermost(found: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    inner = {id(m) for _, module in found for m in module.modules() if m is not module}
    return [(n, m) for n, m in found if id(m) not in inner]


def find_models(
    optimizers: Iterable[Any], modules: list[tuple[str, nn.Module]]
) -> list[tuple[str, nn.Module]]:
    """Of the modules within reach, those that hold what these optimizers move.

    An optimizer that moves tensors of no module may hold copies in float32 of a half-precision
    model's weights: then every other module that is trained (not a frozen teacher, not an average)
    counts as a model too.
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
    """Of the modules within reach, those without any parameter that keep floating buffers: a loss with a running center.

    Their buffers are state of the training as much as the model's: a step that is left out must
    leave no NaN in them.
    """
    return [
        (n, m)
        for n, m in modules
        if next(m.parameters(), None) is None and any(b.is_floating_point() for b in m.buffers())
    ]
