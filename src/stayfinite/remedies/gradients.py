"""Limits gradients in the backward where a product of derivatives overflows."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .matching import free_name, stands_alone
from .source import Source

__all__: list[str] = []


@pattern(
    "limit_gradient",
    "limit the gradient where it passes this line: a hook that clamps it to 1",
    "clipping at the end is too late: the norm of an infinite gradient is infinite. Values of the forward stay "
    "as they are, larger gradients do not",
)
def limit_gradient(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    return _hook(source, node, "1")


@pattern(
    "limit_gradient_more",
    "limit the gradient where it passes this line: a hook that clamps it to 0.01",
    "clipping at the end is too late: the norm of an infinite gradient is infinite. Values of the forward stay "
    "as they are, larger gradients do not",
)
def limit_gradient_more(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    return _hook(source, node, "0.01")


def _hook(source: Source, node: ast.AST, limit: str) -> list[Edit] | None:
    if not isinstance(node, (ast.Assign, ast.Return)) or not stands_alone(source, node):
        return None
    indent, newline = source.indent(node), source.newline
    end = source.line_start((node.end_lineno or node.lineno) + 1)
    if source.text[end - 1 : end] != "\n" or node.value is None:
        return None
    name = free_name(source, node, "out")
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        if len(node.targets) != 1 or not isinstance(target, ast.Name):
            return None
        name = target.id
    lines = [
        f"if {name}.requires_grad:",
        f"    {name}.register_hook(lambda grad: grad.clamp(-{limit}, {limit}))",
    ]
    put = "".join(f"{indent}{line}{newline}" for line in lines)
    if isinstance(node, ast.Assign):
        return [Edit(end, end, put)]
    start = source.span(node)[0]
    head = source.span(node.value)[0]
    return [Edit(start, head, f"{name} = "), Edit(end, end, f"{put}{indent}return {name}{newline}")]
