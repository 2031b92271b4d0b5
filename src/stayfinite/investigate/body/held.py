"""Names data that a replay meets without having computed it, by the script's variable that holds it.

A loop may draw its batches itself: from a replay buffer, from arrays, from tensors of its module. Such a tensor is no part of a
loader's batch, and where a call has made it of an array, no operator has made it either.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...locate.notes import SourceRef
from ...runtime.batches import named_tensors
from .scene import Scene
from .source import function_source, source_tree

__all__ = ["HeldData"]

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_MAX_COMPARED = 16


class HeldData:
    """The tensors in the variables of these scenes, but for what an iteration hands on to the next one."""

    def __init__(self, scenes: Sequence[Scene]) -> None:
        self._scenes = scenes
        self._num_compared = 0

    def find(self, tensor: Tensor) -> SourceRef | None:
        """The variable that holds this tensor, the memory it is a view of, or the same values."""
        for is_same in (_has_memory, self._has_values):
            found = [each for each in self._tensors if is_same(each.tensor, tensor)]
            if found:
                is_data = not any(each.is_handed_on for each in found)
                return SourceRef("batch", found[0].name, found[0].tensor) if is_data else None
        return None

    def _has_values(self, held: Tensor, tensor: Tensor) -> bool:
        if self._num_compared >= _MAX_COMPARED or not _is_alike(held, tensor):
            return False
        self._num_compared += 1
        return bool(torch.equal(held.isnan(), tensor.isnan())) and _equal(held, tensor)

    @functools.cached_property
    def _tensors(self) -> list[_Held]:
        return [
            _Held(name, t, variable in uses.handed_on)
            for scene in self._scenes
            for space, uses in _spaces(scene)
            for variable in sorted(uses.assigned)
            if _may_hold(value := space.get(variable))
            for name, t in named_tensors(value, variable)
            if _is_data(t)
        ]


@dataclasses.dataclass(frozen=True)
class _Held:
    name: str
    tensor: Tensor
    is_handed_on: bool


@dataclasses.dataclass(frozen=True)
class _Uses:
    """The names that a scope assigns, and those that a loop in it reads before it assigns them."""

    assigned: frozenset[str]
    handed_on: frozenset[str]


def _spaces(scene: Scene) -> Iterator[tuple[dict[str, Any], _Uses]]:
    """The variables of a function and of its module, with how they are used."""
    if scene.is_function:
        found = function_source(scene.code)
        if found is not None:
            yield scene.local_variables, _uses_in(found.node)
    tree = source_tree(scene.file)
    if tree is not None:
        yield scene.module_globals, _uses_in(tree)


@functools.lru_cache(maxsize=64)
def _uses_in(scope: ast.AST) -> _Uses:
    assigned = {name for name, is_read in _uses(scope, is_top=True) if not is_read}
    handed = set()
    if isinstance(scope, ast.Module):
        handed = {n for g in ast.walk(scope) if isinstance(g, ast.Global) for n in g.names}
    for loop in (n for n in _own_nodes(scope) if isinstance(n, _LOOPS)):
        first: dict[str, bool] = {}
        uses = list(_uses(loop))
        for name, is_read in uses:
            first.setdefault(name, is_read)
        handed |= {name for name, is_read in uses if not is_read and first[name]}
    return _Uses(frozenset(assigned), frozenset(handed))


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, _FUNCTIONS):
            yield child
            yield from _own_nodes(child)


def _uses(node: ast.AST, is_top: bool = False) -> Iterator[tuple[str, bool]]:
    """Names in the order of their use, each with whether it is read."""
    if isinstance(node, _FUNCTIONS) and not is_top:
        return  # its reads count where it is called, which is after what is assigned before
    if isinstance(node, ast.Name):
        yield node.id, isinstance(node.ctx, ast.Load)
        return
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, True
    fields = [value for _, value in ast.iter_fields(node)]
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr, *_LOOPS[:2])):
        assigned = "targets" if isinstance(node, ast.Assign) else "target"
        last = getattr(node, assigned)
        made = node.iter if isinstance(node, _LOOPS[:2]) else node.value
        fields = [made, last, *(f for f in fields if f is not last and f is not made)]
    for value in fields:
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _uses(child)


def _may_hold(value: object) -> bool:
    is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return isinstance(value, (Tensor, list, tuple, dict)) or is_record


def _is_data(tensor: Tensor) -> bool:
    """Not a weight or an activation."""
    is_plain = tensor.layout == torch.strided and tensor.is_floating_point()
    return is_plain and not tensor.requires_grad and not tensor.is_meta


def _is_alike(held: Tensor, tensor: Tensor) -> bool:
    return (
        held.shape == tensor.shape
        and held.device == tensor.device
        and held.dtype == tensor.dtype
        and held.numel() > 1
    )


def _has_memory(held: Tensor, tensor: Tensor) -> bool:
    return held.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def _equal(held: Tensor, tensor: Tensor) -> bool:
    return bool(torch.equal(held.nan_to_num(0.5, 2.5, -2.5), tensor.nan_to_num(0.5, 2.5, -2.5)))
