"""The catalogue of source changes: each finds its pattern and edits the text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..errors import UsageError
from .edits import Edit, Remedy
from .source import Source

__all__ = ["CATALOGUE", "Pattern", "at", "find", "pattern"]

Match = Callable[[Source, ast.AST], Iterable[Edit] | None]


@dataclass(frozen=True)
class Pattern:
    """One kind of change: its name, its effect, the reason, and the function that matches a node."""

    name: str
    title: str
    why: str
    match: Match
    is_equivalent: bool = True
    """Whether healthy values give the same result; otherwise a comparison has to show it."""


CATALOGUE: dict[str, Pattern] = {}


def pattern(
    name: str, title: str, why: str, is_equivalent: bool = True
) -> Callable[[Match], Match]:
    """Add a change to the catalogue; its name must be unique."""
    if name in CATALOGUE:
        raise UsageError(f"remedy {name!r} is already in the catalogue: {CATALOGUE[name].title}")

    def add(match: Match) -> Match:
        CATALOGUE[name] = Pattern(name, title, why, match, is_equivalent)
        return match

    return add


def find(source: Source, node: ast.AST, name: str) -> Remedy | None:
    """The change of this name at this node; None if it does not match."""
    try:
        kind = CATALOGUE[name]
    except KeyError:
        known = ", ".join(sorted(CATALOGUE))
        raise UsageError(f"unknown remedy {name!r}; known: {known}") from None
    edits = kind.match(source, node)
    if not edits:
        return None
    line = getattr(node, "lineno", 1)
    return Remedy(
        name=name, title=kind.title, why=kind.why, line=line, edits=tuple(sorted(edits)),
        is_equivalent=kind.is_equivalent,
    )  # fmt: skip


def at(source: Source, line: int, names: Iterable[str] | None = None) -> tuple[Remedy, ...]:
    """All changes that match on a line, the innermost last.

    >>> from stayfinite import remedies
    >>> s = remedies.Source("import torch\\ny = torch.log(torch.softmax(x, dim=-1))\\n")
    >>> [r.name for r in remedies.at(s, 2, ["log_space"])]
    ['log_space']
    """
    wanted = list(CATALOGUE) if names is None else list(names)
    made = [find(source, node, name) for node in source.at_line(line) for name in wanted]
    return tuple(dict.fromkeys(r for r in made if r is not None))
