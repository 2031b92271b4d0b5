"""A source text with its syntax tree: positions of nodes, definitions of names."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from typing import Any

from ..parsing import parsed

__all__ = ["Source", "binds"]

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module


class Source:
    """A parsed text that can be edited in place."""

    def __init__(
        self, text: str, tree: ast.Module | None = None, dtype: str = "", kernel: str = ""
    ) -> None:
        """`dtype`, `kernel`: the dtype and the name of the failing operator."""
        self.text = text
        self.dtype = dtype
        self.tree = parsed(text) if tree is None else tree
        self.kernel = kernel
        self.lines = list(io.StringIO(text, newline=""))
        self._starts = _starts(self.lines)
        self._parents: dict[ast.AST, ast.AST] | None = None

    def span(self, node: Any) -> tuple[int, int]:
        """The start and the end of a node in the text.

        >>> s = Source("é = log(x)")
        >>> s.span(s.tree.body[0].value)
        (4, 10)
        """
        first = self._offset(node.lineno, node.col_offset)
        return first, self._offset(node.end_lineno, node.end_col_offset)

    def text_of(self, node: ast.AST) -> str:
        """A node as it is written."""
        start, end = self.span(node)
        return self.text[start:end]

    def _offset(self, line: int, column: int) -> int:
        """Convert a column, because trees count bytes and texts characters."""
        text = self.lines[line - 1]
        if text.isascii():
            return self._starts[line - 1] + column
        return self._starts[line - 1] + len(text.encode()[:column].decode())

    def line_start(self, line: int) -> int:
        return self._starts[line - 1] if line <= len(self._starts) else len(self.text)

    def indent(self, node: ast.stmt) -> str:
        line = self.lines[node.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    @property
    def newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    def parent(self, node: ast.AST) -> ast.AST | None:
        if self._parents is None:
            self._parents = {
                child: node
                for node in ast.walk(self.tree)
                for child in ast.iter_child_nodes(node)
                if not isinstance(child, (ast.expr_context, ast.operator))
            }
        return self._parents.get(node)

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The statement that contains an expression."""
        at: ast.AST | None = node
        while at is not None and not isinstance(at, ast.stmt):
            at = self.parent(at)
        return at

    def scope(self, node: ast.AST) -> Scope:
        """The function that contains a node, or the module."""
        at = self.parent(node)
        while at is not None:
            if isinstance(at, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                return at
            at = self.parent(at)
        return self.tree

    def function_at(self, line: int) -> Scope:
        """The innermost function that contains a line, or the module."""
        around = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and node.lineno <= line <= (node.end_lineno or 0)
        ]
        return max(around, key=lambda n: n.lineno) if around else self.tree

    def statement_at(self, line: int) -> ast.stmt | None:
        """The innermost statement that contains a line."""
        around = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
        ]
        return max(around, key=lambda n: (n.lineno, n.col_offset)) if around else None

    def names(self, scope: Scope) -> set[str]:
        """All names that are used in a function."""
        return {n.id for n in ast.walk(scope) if isinstance(n, ast.Name)} | _parameters(scope)

    def module_names(self) -> set[str]:
        """Names at the top level of the file: imports, functions, classes and variables."""
        found: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                found |= {(a.asname or a.name).split(".")[0] for a in node.names}
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            else:
                found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        return found

    def parameters(self, scope: Scope) -> set[str]:
        return _parameters(scope)

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The block that contains a statement."""
        parent = self.parent(statement)
        for name in ("body", "orelse", "finalbody", "handlers"):
            found = getattr(parent, name, None)
            if isinstance(found, list) and statement in found:
                return found
        return []

    def at_line(self, line: int) -> Iterator[ast.AST]:
        """All nodes of a line, the outer ones first, without the contents of blocks."""
        for node in ast.walk(self.tree):
            first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
            if first <= line <= last and isinstance(node, (ast.expr, ast.Expr, ast.Assign)):
                yield node

    def definition(self, node: ast.expr) -> ast.expr:
        """The expression assigned to a name, if that is certain; else the node itself.

        >>> s = Source("p = softmax(x)\\nq = log(p)")
        >>> s.text_of(s.definition(s.tree.body[1].value.args[0]))
        'softmax(x)'
        """
        if not isinstance(node, ast.Name):
            return node
        scope = self.scope(node)
        bound = [n for n in ast.walk(scope) if node.id in binds(n)]
        if len(bound) != 1 or node.id in _parameters(scope):
            return node
        assigned = bound[0]
        if not isinstance(assigned, ast.Assign) or assigned.lineno >= node.lineno:
            return node
        if not isinstance(assigned.targets[0], ast.Name) or len(assigned.targets) != 1:
            return node
        if self.scope(assigned) is not scope or not self.reaches(assigned, node):
            return node
        return assigned.value if self.is_unchanged(assigned.value, node) else node

    def is_unchanged(self, value: ast.expr, use: ast.AST) -> bool:
        """Whether nothing in an expression changes between it and its use."""
        parts = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        last = getattr(use, "lineno", 0)
        return not any(
            value.lineno < getattr(node, "lineno", 0) < last and parts & binds(node)
            for node in ast.walk(self.scope(use))
        )

    def reaches(self, assigned: ast.Assign, use: ast.AST) -> bool:
        """Whether the use is after the assignment, in its block or deeper."""
        holds_block = self.block(assigned)
        at: ast.AST | None = use
        while at is not None and at not in holds_block:
            at = self.parent(at)
        return at is not None


def _starts(lines: list[str]) -> list[int]:
    starts, at = [], 0
    for line in lines:
        starts.append(at)
        at += len(line)
    return starts


def _parameters(scope: Scope) -> set[str]:
    if isinstance(scope, ast.Module):
        return set()
    a = scope.args
    return {x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if x}


def binds(node: ast.AST) -> set[str]:
    """Names that a statement assigns, or changes in place."""
    if isinstance(node, ast.Assign):
        targets: list[ast.expr] = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.NamedExpr)):
        targets = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        targets = [node.optional_vars]
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        return set(node.names)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_in_place = node.func.attr.endswith("_") and not node.func.attr.endswith("__")
        targets = [node.func.value] if is_in_place else []
    else:
        return set()
    return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
