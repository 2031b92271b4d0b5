"""Parses Python source without showing the user's syntax warnings again."""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Iterator

__all__ = ["parsed", "without_syntax_warnings"]


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
