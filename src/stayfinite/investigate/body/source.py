"""Finds the syntax tree of a code object."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import linecache
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

import torch

from ...locate.frames import is_user_file
from ...parsing import parsed

__all__ = [
    "FunctionNode",
    "FunctionSource",
    "current_code",
    "file_kind",
    "function_source",
    "names_of",
    "source_tree",
    "substituted",
]

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = tuple(
    {os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")}
)


@functools.lru_cache(maxsize=4096)
def file_kind(file: str) -> str:
    """The origin of a file: "user", "torch", "stdlib" or "library"."""
    if is_user_file(file):
        return "user"
    path = os.path.abspath(file)
    if path.startswith(_TORCH):
        return "torch"
    if "site-packages" in path or "dist-packages" in path:
        return "library"
    return "stdlib" if file.startswith("<frozen") or path.startswith(_STDLIB) else "library"


@dataclass(frozen=True)
class FunctionSource:
    """A function as it was written, and the class around it (private names depend on it)."""

    node: FunctionNode
    class_name: str | None


@functools.lru_cache(maxsize=32)
def source_tree(file: str) -> ast.Module | None:
    """The syntax tree of a source file, read once; None if it cannot be read."""
    lines = linecache.getlines(file)
    try:
        return parsed("".join(lines), file) if lines else None
    except (SyntaxError, ValueError):
        return None


_SUBSTITUTES: dict[CodeType, CodeType] = {}


def current_code(code: CodeType) -> CodeType:
    """The code that a replay runs instead of this one, while a change of the source is tried."""
    return _SUBSTITUTES.get(code, code)


@contextlib.contextmanager
def substituted(codes: dict[CodeType, CodeType]) -> Iterator[None]:
    """Let analyses and copies use the second code for a function with the first."""
    before = dict(_SUBSTITUTES)
    _SUBSTITUTES.update(codes)
    try:
        yield
    finally:
        _SUBSTITUTES.clear()
        _SUBSTITUTES.update(before)


def function_source(code: CodeType) -> FunctionSource | None:
    """The definition of this code; None if the source is not available or has changed."""
    return _function_source(current_code(code))


@functools.lru_cache(maxsize=4096)
def _function_source(code: CodeType) -> FunctionSource | None:
    found = [s for s in _functions(code.co_filename).get(code.co_firstlineno, ()) if _fits(s, code)]
    if len(found) > 1:
        found = [s for s in found if _covers(s.node, code)]
    if len(found) != 1:
        return None
    node, class_name = found[0].node, found[0].class_name
    if class_name is not None and any(_is_private(n) for n in (*code.co_names, *code.co_varnames)):
        node = _Private(class_name).visit(copy.deepcopy(node))
    return FunctionSource(node, class_name)


@functools.lru_cache(maxsize=32)
def _functions(file: str) -> dict[int, list[FunctionSource]]:
    tree = source_tree(file)
    found: dict[int, list[FunctionSource]] = {}
    for source in _walk(tree, None) if tree is not None else ():
        found.setdefault(_first_line(source.node), []).append(source)
    return found


def _walk(node: ast.AST, class_name: str | None) -> Iterator[FunctionSource]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FunctionNode):
            yield FunctionSource(child, class_name)
        yield from _walk(child, child.name if isinstance(child, ast.ClassDef) else class_name)


def _first_line(node: FunctionNode) -> int:
    if isinstance(node, ast.Lambda):
        return node.lineno
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _fits(source: FunctionSource, code: CodeType) -> bool:
    """Whether the arguments match; the file may have been edited since its import."""
    node = source.node
    name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    count = code.co_argcount + code.co_kwonlyargcount
    is_private = any(n.startswith("__") for n in names)
    return name == code.co_name and (is_private or tuple(names) == code.co_varnames[:count])


def _covers(node: FunctionNode, code: CodeType) -> bool:
    """Whether the code belongs to this lambda, if there are several on a line."""
    positions = getattr(code, "co_positions", None)
    if positions is None:
        return False
    inside = [(p[0], p[2]) for p in positions() if p[0] is not None and p[2]]
    body = node.body[0] if isinstance(node.body, list) else node.body
    start = (body.lineno, body.col_offset)
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return bool(inside) and all(start <= place <= end for place in inside)


def _is_private(name: str) -> bool:
    return name.startswith("_") and "__" in name[1:] and not name.endswith("__")


class _Private(ast.NodeTransformer):
    """`self.__x` inside of a class means `self._Class__x`."""

    def __init__(self, class_name: str) -> None:
        self._prefix = "_" + class_name.lstrip("_")

    def _mangled(self, name: str) -> str:
        is_private = name.startswith("__") and not name.endswith("__")
        return self._prefix + name if is_private and self._prefix != "_" else name

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        node.attr = self._mangled(node.attr)
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._mangled(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self._mangled(node.arg)
        return node


def names_of(code: CodeType) -> set[str]:
    """Module-level names that the code may use, including nested functions."""
    names = set(code.co_names)
    for part in code.co_consts:
        if isinstance(part, CodeType):
            names |= names_of(part)
    return names
