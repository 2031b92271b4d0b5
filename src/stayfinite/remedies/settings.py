"""Changes a keyword argument of a call."""

from __future__ import annotations

import ast

from .edits import Edit, Remedy
from .source import Source

__all__ = ["with_keyword"]


def with_keyword(source: Source, call: ast.Call, key: str, value: str) -> Remedy:
    """Set this keyword of a call.

    >>> s = Source("opt = Adam(p, lr=1e-3)")
    >>> with_keyword(s, s.tree.body[0].value, "eps", "1e-8").edits
    (Edit(start=21, end=21, text=', eps=1e-8'),)
    """
    title = f"set {key}={value}"
    return Remedy(
        name=f"set_{key}", title=title, why=_WHY.get(key, ""), line=call.lineno,
        edits=(_edit(source, call, key, value),),
    )  # fmt: skip


_WHY = {
    "eps": "a parameter whose gradient is zero has moments of zero, and 0 / 0 is NaN",
    "zero_infinity": "a sample without an alignment counts as 0 instead of making the whole loss inf",
    "line_search_fn": "the length of each step is then searched for, and one that makes the loss larger is not taken",
    "centered": "the centered form subtracts two numbers that are nearly equal, and rounding decides "
    "the sign under its root",
}


def _edit(source: Source, call: ast.Call, key: str, value: str) -> Edit:
    for keyword in call.keywords:
        if keyword.arg == key:
            return Edit(*source.span(keyword.value), value)
    parts = [*call.args, *call.keywords]
    if not parts:
        end = source.span(call)[1] - 1
        return Edit(end, end, f"{key}={value}")
    end = max(source.span(p)[1] for p in parts)
    return Edit(end, end, f", {key}={value}")
