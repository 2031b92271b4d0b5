"""Divisors that are never zero, and unchanged otherwise."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .floors import divisor_of
from .matching import call, clamped, floored, is_simple, name_of, twice
from .source import Source

__all__: list[str] = []


@pattern(
    "nonzero_divisor",
    "divide by 1 where the divisor is exactly 0",
    "a sum or a difference of either sign keeps its value everywhere else",
)
def nonzero_divisor(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    divisor = divisor_of(node)
    torch = name_of(source, "torch")
    if divisor is None or torch is None or isinstance(divisor, ast.Constant):
        return None
    first, again, edits = twice(source, divisor, "divisor")
    text = f"{torch}.where({first} == 0, {torch}.ones_like({again}), {again})"
    start, end = source.span(divisor)
    if source.text[start - 1 : start] == "(" and source.text[end : end + 1] == ")":
        before = source.text[: start - 1][-1:]
        if not (before.isalnum() or before in "_)]"):
            start, end = start - 1, end + 1
    return [*edits, Edit(start, end, text)]


@pattern(
    "floor_number",
    "divide by at least 1: max(n, 1)",
    "a length or a count that can be 0; every other one stays as it is",
)
def floor_number(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    divisor = divisor_of(node)
    if divisor is None or isinstance(divisor, ast.Constant):
        return None
    start, end = source.span(divisor)
    return [Edit(start, end, f"max({source.text_of(divisor)}, 1)")]


@pattern(
    "floor_definition",
    "give the divisor a floor where it is computed: the epsilon of its dtype",
    "the same number is used in other places too, and what is multiplied by it has to fit what is divided by it",
)
def floor_definition(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    divisor = divisor_of(node)
    made = source.definition(divisor) if divisor is not None else None
    if made is None or made is divisor:
        return None
    return floored(source, made, "eps")


@pattern(
    "floor_reciprocal",
    "give what is inverted a floor: the epsilon of its dtype",
    "the inverse of 0 is infinite; larger numbers stay as they are",
)
def floor_reciprocal(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "reciprocal")
    if found is None:
        return None
    limit = "1e-4" if source.dtype in ("float16", "bfloat16") else "1e-12"
    return clamped(source, found[1], low=limit)


_EPS_NAMES = ("eps", "min")


@pattern(
    "eps_for_dtype",
    "an epsilon that this dtype can hold",
    "1e-8 is 0 in float16: its smallest number is 6e-8",
)
def eps_for_dtype(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if source.dtype not in ("float16", "bfloat16"):
        return None
    found = _epsilon(node)
    if found is None or not isinstance(found.value, float) or not 0 < found.value < 1e-4:
        return None
    return [Edit(*source.span(found), "1e-4")]


def _epsilon(node: ast.AST) -> ast.Constant | None:
    """The small number in `x + 1e-8`, `clamp(min=1e-8)` and `eps=1e-8`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for side in (node.right, node.left):
            if isinstance(side, ast.Constant):
                return side
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg in _EPS_NAMES and isinstance(keyword.value, ast.Constant):
                return keyword.value
        found = call(node, "clamp", "clamp_min", "clip")
        if found is not None and found[2] and isinstance(found[2][0], ast.Constant):
            return found[2][0]
    return None


@pattern(
    "normalize",
    "use torch.nn.functional.normalize, which has an epsilon",
    "a zero vector stays a zero vector; every other one is divided by its norm",
)
def normalize(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    norm = call(source.definition(node.right), "norm")
    home = name_of(source, "torch.nn.functional")
    if norm is None or home is None or not is_simple(node.left):
        return None
    if ast.dump(norm[1]) != ast.dump(node.left):
        return None
    given = {k.arg: k.value for k in norm[3]}
    dim, keepdim = given.get("dim"), given.get("keepdim")
    if dim is None or norm[2] or not isinstance(keepdim, ast.Constant) or not keepdim.value:
        return None
    text = f"{home}.normalize({source.text_of(node.left)}, dim={source.text_of(dim)})"
    return [Edit(*source.span(node), text)]
