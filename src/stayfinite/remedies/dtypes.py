"""Moves a file's training to another precision: every use of float16."""

from __future__ import annotations

import ast

from .edits import Edit, Remedy
from .matching import dotted
from .source import Source

__all__ = ["in_precision"]

_HALF = ("float16", "half")


def in_precision(source: Source, dtype: str) -> Remedy | None:
    """Replace `.half()`, `torch.float16` and the dtype of autocast by `dtype` ("bfloat16" or "float32").

    >>> s = Source("import torch\\nmodel = Net().half()\\n")
    >>> in_precision(s, "bfloat16").edits
    (Edit(start=27, end=31, text='bfloat16'),)
    """
    edits: list[Edit] = []
    first = 0
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Attribute):
            continue
        start, end = source.span(node)[1] - len(node.attr), source.span(node)[1]
        is_cast = node.attr == "half" and isinstance(source.parent(node), ast.Call)
        is_name = node.attr in _HALF and dotted(node.value) == "torch"
        if is_name:
            edits.append(Edit(start, end, dtype))
        elif is_cast and _is_called(source, node):
            edits.append(Edit(start, end, "float" if dtype == "float32" else dtype))
        else:
            continue
        first = min(first or node.lineno, node.lineno)
    if not edits:
        return None
    return Remedy(
        name=f"all_{dtype}", title=f"train in {dtype} instead of float16",
        why="bfloat16 has the range of float32 in the same memory" if dtype == "bfloat16"
        else "float32 holds what float16 cannot, in twice the memory",
        line=first, edits=tuple(sorted(edits)),
    )  # fmt: skip


def _is_called(source: Source, node: ast.Attribute) -> bool:
    above = source.parent(node)
    return isinstance(above, ast.Call) and above.func is node and not above.args
