"""Limits that keep an operand inside its domain, and change nothing elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .matching import call, clamped, dotted, floored, grouped, name_of, some_tensor
from .source import Source


def divisor_of(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return node.right
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        return node.value
    found = call(node, "div", "divide", "true_divide", "div_")
    return found[2][0] if found and found[2] else None


def has_floor(source: Source, node: ast.expr) -> bool:
    """Whether a divisor is kept from zero already: `x.clamp(min=1e-6)`, `torch.max(tiny * ones, x)`."""
    if source.dtype in ("float16", "bfloat16"):
        return False  # what is written may round to 0 there
    found = call(node, "clamp", "clamp_min", "clip", "max", "maximum")
    if found is None:
        return False
    if found[0] in ("max", "maximum"):
        limits = [found[1], *found[2]] if len(found[2]) == 1 else []
    else:
        limits = [*found[2][:1], *(k.value for k in found[3] if k.arg == "min")]
    return any(_is_positive(a) for a in limits)


def _is_positive(node: ast.expr) -> bool:
    """A positive number, also one times a tensor of ones."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = (node.left, node.right)
        ones = any(call(s, "ones", "ones_like", "new_ones") for s in sides)
        return ones and any(_is_positive(s) for s in sides)
    value = getattr(node, "value", None)
    return isinstance(node, ast.Constant) and isinstance(value, (int, float)) and value > 0


@pattern(
    "floor_count",
    "count at least 1: .clamp(min=1)",
    "0 / 1 is 0 where nothing was counted; every other count stays as it is",
)
def floor_count(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    counted = divisor_of(node) or _inverted(node)
    if counted is None or has_floor(source, counted):
        return None
    return clamped(source, counted, low="1")


def _inverted(node: ast.AST) -> ast.expr | None:
    """`x` of `x.rsqrt()`, `x.reciprocal()`, `x.pow(-0.5)` and `x ** -1`."""
    found = call(node, "rsqrt", "reciprocal")
    if found is not None:
        return found[1]
    power = call(node, "pow")
    if power is not None and power[2] and _is_below_zero(power[2][0]):
        return power[1]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return node.left if _is_below_zero(node.right) else None
    return None


def _is_below_zero(node: ast.expr) -> bool:
    if not isinstance(node, ast.UnaryOp) or not isinstance(node.op, ast.USub):
        return False
    return isinstance(node.operand, ast.Constant)


@pattern(
    "floor_norm",
    "give the divisor a floor: the epsilon of its dtype",
    "0 / eps is 0 with a gradient that is finite; larger divisors stay as they are",
)
def floor_norm(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    divisor = divisor_of(node)
    if divisor is None or has_floor(source, divisor):
        return None
    return floored(source, divisor, "eps")


@pattern(
    "floor_root",
    "give the root a floor: the smallest number of its dtype",
    "below the floor the gradient is 0 instead of inf; above it nothing changes",
)
def floor_root(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "sqrt", "rsqrt", "sqrt_", "rsqrt_")
    return floored(source, found[1], "tiny") if found else None


@pattern(
    "bound_arc",
    "keep the cosine within 1 - eps",
    "at 1 the derivative of the arc is infinite; inside of the limits nothing changes",
)
def bound_arc(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "acos", "asin", "arccos", "arcsin")
    torch = name_of(source, "torch")
    tensor = some_tensor(source, found[1]) if found else None
    if found is None or torch is None or tensor is None:
        return None
    eps = f"{torch}.finfo({tensor}.dtype).eps"
    kept = call(found[1], "clamp", "clip")
    operand = kept[1] if kept is not None and _is_unit(kept[2], kept[3]) else found[1]
    if operand is found[1]:
        return clamped(source, operand, f"-1 + {eps}", f"1 - {eps}")
    text = f"{grouped(source, operand)}.clamp(-1 + {eps}, 1 - {eps})"
    return [Edit(*source.span(found[1]), text)]


def _is_unit(args: list[ast.expr], keywords: list[ast.keyword]) -> bool:
    """`clamp(-1, 1)`, which the narrower limits replace."""
    numbers = [ast.unparse(a) for a in (*args, *(k.value for k in keywords))]
    return [n.removesuffix(".0") for n in numbers] == ["-1", "1"]


@pattern(
    "zero_infinity",
    "pass zero_infinity=True",
    "a sample without an alignment counts as 0 instead of making the whole loss inf",
)
def zero_infinity(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, ast.Call) or dotted(node.func).rpartition(".")[2] not in (
        "CTCLoss",
        "ctc_loss",
    ):
        return None
    for keyword in node.keywords:
        if keyword.arg == "zero_infinity":
            start, end = source.span(keyword.value)
            return [Edit(start, end, "True")]
    parts = [*node.args, *node.keywords]
    if not parts:
        start, end = source.span(node)
        return [Edit(end - 1, end - 1, "zero_infinity=True")]
    end = max(source.span(p)[1] for p in parts)
    return [Edit(end, end, ", zero_infinity=True")]
