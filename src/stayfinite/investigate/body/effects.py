"""Facts for judging a call: the author of a function, the effect of a method."""

from __future__ import annotations

import ast
import contextlib
import types
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...patches.manager import unpatched
from . import known_calls as calls
from .access import GRADIENTS, RANDOM, Reader, Verdict
from .source import file_kind
from .values import Path

__all__ = [
    "changing",
    "class_member",
    "code_kind",
    "exchange",
    "file_kind_of",
    "holds_user_code",
    "home_of",
    "is_generator",
    "note_change",
    "note_draws",
    "undecorated",
]


def note_change(verdict: Verdict, path: Path) -> None:
    verdict.mutates.add(path)
    verdict.reads.add(path)
    if "grad" in path:
        verdict.mutates.add(GRADIENTS)
        verdict.reads.add(GRADIENTS)


def changing(node: ast.Call, reader: Reader, verdict: Verdict) -> Verdict:
    """`parts.append(x)`, `p.grad.mul_(2)` of something made by the statements."""
    if isinstance(node.func, ast.Attribute):
        path, name = reader.env.path(node.func.value), node.func.attr
        is_container = name in calls.MUTATING and not calls.is_tensor_call(node)
        if path is not None and (is_container or calls.tensor_method_mutates(name)):
            note_change(verdict, path)
        note_draws(verdict, "", name)
    return verdict


def note_draws(verdict: Verdict, module: str, name: str) -> None:
    if calls.draws_numbers(module, name):
        verdict.reads.add(RANDOM)
        verdict.mutates.add(RANDOM)


def exchange(node: ast.Call, reader: Reader) -> Verdict:
    """`dist.all_reduce(x)`: all ranks run a replay together, over process groups of ours. An asynchronous one is not run
    again: its result is there after a `wait` that a slice may leave out.
    """
    named = {k.arg: k.value for k in node.keywords}
    is_waited_for = named.pop("async_op", None)
    verdict = Verdict(is_computing=True, is_exchanging=True)
    if is_waited_for is not None and getattr(is_waited_for, "value", True):
        verdict.outside = "an exchange between processes is not waited for here"
    for written in (*node.args[:1], *named.values()):
        path = reader.env.path(written)
        if path is not None:
            note_change(verdict, path)
    return verdict


def is_generator(obj: Any) -> bool:
    return isinstance(obj, (np.random.Generator, np.random.RandomState))


def undecorated(func: types.FunctionType) -> types.FunctionType:
    """The function inside `@torch.no_grad()`, our patches, and other wrappers."""
    original = unpatched(func)
    func = original if isinstance(original, types.FunctionType) else func
    while file_kind(func.__code__.co_filename) in ("torch", "stdlib"):
        inner = func.__dict__.get("__wrapped__")
        if not isinstance(inner, types.FunctionType):
            break
        func = inner
    return func


def code_kind(obj: Any) -> str:
    func = obj.__func__ if isinstance(obj, types.MethodType) else obj
    if not isinstance(func, types.FunctionType):
        return ""
    return file_kind(undecorated(func).__code__.co_filename)


def holds_user_code(cells: Iterable[types.CellType]) -> bool:
    """Whether one of these is a user's function, as in a wrapper of a library around it."""
    for cell in cells:
        with contextlib.suppress(ValueError):  # empty
            if code_kind(cell.cell_contents) == "user":
                return True
    return False


def home_of(member: Any) -> str:
    """The module of a function of a class; for one that is written in C, that of the class."""
    owner = getattr(member, "__objclass__", None)
    return str(getattr(member if owner is None else owner, "__module__", None) or "builtins")


def class_member(kind: type, name: str) -> Any:
    """The raw class attribute of this name."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def file_kind_of(kind: type) -> str:
    """The package of a class."""
    root = kind.__module__.split(".")[0] if isinstance(kind.__module__, str) else ""
    if root in ("torch", "builtins"):
        return "torch" if root == "torch" else "stdlib"
    for value in kind.__dict__.values():
        if isinstance(value, types.FunctionType) and value.__code__.co_filename != "<string>":
            return file_kind(value.__code__.co_filename)
    return "user" if root == "__main__" else "library"
