"""Parses Python source without showing the user's syntax warnings again, names in it, and TOML on every Python."""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

__all__ = ["dotted", "parse_toml", "parsed", "without_syntax_warnings"]


@contextlib.contextmanager
def without_syntax_warnings() -> Iterator[None]:
    """Ignore syntax warnings. `catch_warnings` would make Python repeat warnings that it has shown already."""
    quiet = [("ignore", None, kind, None, 0) for kind in (SyntaxWarning, DeprecationWarning)]
    filters = warnings.filters
    filters[:0] = quiet  # type: ignore[index]
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # other code has cleared the filters
            for each in quiet:
                filters.remove(each)  # type: ignore[attr-defined]


def parsed(text: str, file: str = "<unknown>") -> ast.Module:
    """Parse source without warnings; raises SyntaxError as `ast.parse` does.

    >>> ast.unparse(parsed("x = 1"))
    'x = 1'
    """
    with without_syntax_warnings():
        return ast.parse(text, file)


def dotted(node: ast.AST) -> str:
    """`a.b.c` as text; empty for anything but names.

    >>> dotted(ast.parse("self.net.loss", mode="eval").body)
    'self.net.loss'
    """
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        home = dotted(node.value)
        return f"{home}.{node.attr}" if home else ""
    return ""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raises ValueError. Python 3.10 has no parser of its own.

    >>> parse_toml("lr = 0.1")
    {'lr': 0.1}
    """
    parser = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    content: dict[str, Any] = parser.loads(text)
    return content
