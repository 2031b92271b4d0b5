"""Finds where a loop's body gets its batch, so that another batch can be used."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from .home import Home
from .units import Unit, flat

__all__ = ["BATCHES", "Feed", "feeds_of", "take"]

BATCHES = "__stayfinite_batches__"


@dataclass(frozen=True)
class Feed:
    """One batch: its target, and the statement that assigns it (None: the loop's head)."""

    target: ast.expr
    unit: Unit | None = None

    @property
    def is_repeated(self) -> bool:
        return self.unit is not None and bool(self.unit.loops)


def feeds_of(home: Home, units: list[Unit], variables: dict[str, Any]) -> list[Feed]:
    """The batches of one iteration, in order."""
    found: list[Feed] = []
    if isinstance(home.node, (ast.For, ast.AsyncFor)):
        found += [Feed(t) for t in _fed(home.node.target, home.node.iter)]
    drawn: dict[str, Feed] = {}
    for unit in flat(units):
        target = _drawn_into(unit)
        if target is not None and _holds_tensors(target, variables):
            top = _outermost(unit)
            drawn.setdefault(ast.dump(target) + str(id(top)), Feed(target, top))
    return [*found, *drawn.values()]


def take(feed: Feed, place: ast.stmt) -> ast.stmt:
    """`target = next(batches)`, at the place of the statement."""
    call = ast.Call(ast.Name("next", ast.Load()), [ast.Name(BATCHES, ast.Load())], [])
    return ast.fix_missing_locations(ast.copy_location(ast.Assign([feed.target], call), place))


def _fed(target: ast.expr, source: ast.expr) -> Iterator[ast.expr]:
    """The targets of the batches in `for target in source`; none if it only counts."""
    if not isinstance(source, ast.Call):
        if isinstance(source, (ast.Name, ast.Attribute, ast.Subscript)):
            yield target
        return
    name = source.func.id if isinstance(source.func, ast.Name) else ""
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    if name == "range":
        return
    if name == "enumerate" and len(parts) == 2 and source.args:
        yield from _fed(parts[1], source.args[0])
    elif name == "zip" and len(parts) == len(source.args):
        for part, inner in zip(parts, source.args):
            yield from _fed(part, inner)
    elif source.args and isinstance(source.args[0], ast.Call):
        yield from _fed(target, source.args[0])
    else:
        yield target


def _drawn_into(unit: Unit) -> ast.expr | None:
    """`batch = next(it)`."""
    node = unit.node
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return None
    call = node.value
    is_next = isinstance(call, ast.Call) and (
        (isinstance(call.func, ast.Name) and call.func.id == "next")
        or (isinstance(call.func, ast.Attribute) and call.func.attr == "__next__")
    )
    return node.targets[0] if is_next else None


def _holds_tensors(target: ast.expr, variables: dict[str, Any]) -> bool:
    """Whether a drawn value is data, and not a name or a number."""
    names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
    return any(_has_tensor(variables.get(n), 3) for n in names)


def _has_tensor(value: Any, depth: int) -> bool:
    if isinstance(value, (Tensor, np.ndarray)):
        return True
    parts = value.values() if isinstance(value, dict) else value
    if depth == 0 or not isinstance(value, (dict, list, tuple)):
        return hasattr(value, "input_ids")
    return any(_has_tensor(p, depth - 1) for p in itertools.islice(parts, 100))


def _outermost(unit: Unit) -> Unit:
    """The whole `try` around a `next`, with its handling of the end of the data."""
    found = unit
    for above in unit.ancestors:
        if isinstance(above.node, ast.Try):
            found = above
    return found
