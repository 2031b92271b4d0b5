"""Arguments kept inside a function's domain and away from infinite derivatives."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .matching import (
    call,
    clamped,
    floored,
    free_name,
    grouped,
    hoisted,
    is_namespace,
    limit_of,
    name_of,
    stands_alone,
    twice,
    with_method,
)
from .source import Source

__all__: list[str] = []


def _power(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return node.left, node.right
    found = call(node, "pow", "float_power")
    if found is None or not found[2]:
        return None
    return found[1], found[2][0]


@pattern(
    "floor_power",
    "give the base of the power a floor",
    "below it the gradient is 0 instead of infinite or undefined; above it nothing changes",
)
def floor_power(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = _power(node)
    if found is None:
        return None
    exponent = found[1]
    is_negative = isinstance(exponent, ast.UnaryOp) and isinstance(exponent.op, ast.USub)
    if isinstance(exponent, ast.Constant) and isinstance(exponent.value, int):
        return None
    return floored(source, found[0], "eps" if is_negative else "tiny")


@pattern(
    "floor_power_eps",
    "give the base of the power a floor: the epsilon of its dtype",
    "below it the gradient is 0; the power itself stays far from the limits of the dtype",
)
def floor_power_eps(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = _power(node)
    if found is None or (isinstance(found[1], ast.Constant) and isinstance(found[1].value, int)):
        return None
    return floored(source, found[0], "eps")


@pattern(
    "floor_root_eps",
    "give the root a floor: the epsilon of its dtype",
    "below the floor the gradient is 0 instead of inf, and its inverse stays ordinary",
)
def floor_root_eps(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "sqrt", "rsqrt")
    return floored(source, found[1], "eps") if found else None


@pattern(
    "above_minus_one",
    "keep the argument of log1p above -1",
    "log1p is defined above -1; elsewhere nothing changes",
)
def above_minus_one(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "log1p")
    if found is None:
        return None
    limit = "0.01" if source.dtype in ("float16", "bfloat16") else "1e-6"
    return clamped(source, found[1], low=f"-1 + {limit}")


@pattern(
    "log1p_of_positive",
    "keep the argument of log1p at 0 or above",
    "a price or a count is not negative; what is positive stays as it is",
)
def log1p_of_positive(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "log1p")
    if found is None:
        return None
    return clamped(source, found[1], low="0")


@pattern(
    "log_of_positive",
    "keep what is added to a positive number under the logarithm at 0 or above",
    "log(x + 1) is meant for counts and prices: a negative one has no logarithm, and counts as 0",
)
def log_of_positive(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "log", "log2", "log10")
    inside = found[1] if found is not None and not found[2] else None
    if not isinstance(inside, ast.BinOp) or not isinstance(inside.op, ast.Add):
        return None
    for side, other in ((inside.left, inside.right), (inside.right, inside.left)):
        value = other.value if isinstance(other, ast.Constant) else None
        if isinstance(value, (int, float)) and value >= 1e-2:
            return with_method(source, side, ".clamp(min=0)")
    return None


@pattern(
    "inside_unit",
    "keep the argument inside of (-1, 1)",
    "at its ends the function is infinite; inside nothing changes",
)
def inside_unit(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "atanh", "arctanh", "erfinv")
    limit = limit_of(source, found[1], "eps") if found else None
    if found is None or limit is None:
        return None
    return clamped(source, found[1], f"-1 + {limit}", f"1 - {limit}")


@pattern(
    "logit_eps",
    "give logit its eps",
    "at 0 and 1 the log odds are infinite; between them nothing changes",
)
def logit_eps(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "logit")
    if found is None or found[2] or found[3] or not isinstance(node, ast.Call):
        return None
    limit = "1e-3" if source.dtype in ("float16", "bfloat16") else "1e-6"
    end = source.span(node)[1] - 1
    return [Edit(end, end, f"{', ' if node.args else ''}eps={limit}")]


@pattern(
    "hypot_as_norm",
    "write the hypotenuse as a vector norm",
    "hypot has no derivative at (0, 0); the norm's is 0 there, and the value is the same",
)
def hypot_as_norm(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "hypot")
    torch = name_of(source, "torch")
    if found is None or torch is None or not found[2]:
        return None
    a, b = source.text_of(found[1]), source.text_of(found[2][0])
    text = f"{torch}.linalg.vector_norm({torch}.stack([{a}, {b}]), dim=0)"
    return [Edit(*source.span(node), text)]


def _norm_dim(
    source: Source, args: list[ast.expr], keywords: list[ast.keyword]
) -> list[str] | None:
    """The other arguments of a norm over one axis, if its order is 2."""
    given = {k.arg: k.value for k in keywords}
    order = given.pop("p", None) or given.pop("ord", None)
    rest = list(args)
    if rest and order is None:
        order = rest.pop(0)
    is_two = order is None or (isinstance(order, ast.Constant) and order.value in (2, 2.0, "fro"))
    if not is_two or set(given) - {"dim", "keepdim"} or len(rest) > 2:
        return None
    return [*(source.text_of(a) for a in rest),
            *(f"{k}={source.text_of(v)}" for k, v in given.items())]  # fmt: skip


@pattern(
    "norm_as_root",
    "write the norm as the root of the sum of squares, with a floor under the root",
    "at the zero vector the derivative of the norm is undefined; with the floor it is 0",
)
def norm_as_root(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "norm", "vector_norm")
    asked = _norm_dim(source, found[2], found[3]) if found else None
    limit = limit_of(source, found[1], "tiny") if found else None
    if found is None or asked is None or limit is None:
        return None
    inner = f"{grouped(source, found[1])}.square().sum({', '.join(asked)})"
    return [Edit(*source.span(node), f"{inner}.clamp(min={limit}).sqrt()")]


@pattern(
    "std_as_root",
    "write the deviation as the root of the variance, with a floor under the root",
    "of equal values the derivative of the deviation is 0 / 0; with the floor it is 0",
)
def std_as_root(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "std")
    limit = limit_of(source, found[1], "tiny") if found else None
    if found is None or limit is None:
        return None
    asked = ", ".join(
        [*(source.text_of(a) for a in found[2]), *(source.text_of(k) for k in found[3])]
    )
    text = f"{grouped(source, found[1])}.var({asked}).clamp(min={limit}).sqrt()"
    return [Edit(*source.span(node), text)]


@pattern(
    "acosh_from_one",
    "let acosh be 0, with a gradient of 0, at 1 and below",
    "two equal points have the distance 0, and the derivative there is infinite; above 1 nothing changes",
)
def acosh_from_one(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found, torch = call(node, "acosh", "arccosh"), name_of(source, "torch")
    if found is None or torch is None or found[2] or found[3]:
        return None
    x, again, edits = twice(source, found[1], "argument")
    if x != again:
        return None
    inner = f"{torch}.acosh({torch}.where({x} > 1, {x}, 2))"
    return [*edits, Edit(*source.span(node), f"{torch}.where({x} > 1, {inner}, 0)")]


@pattern(
    "above_one",
    "keep the argument of acosh above 1",
    "acosh is defined from 1 on, and its derivative is infinite there; elsewhere nothing changes",
)
def above_one(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "acosh", "arccosh")
    return clamped(source, found[1], low="1 + 1e-6") if found else None


@pattern(
    "log_abs_det",
    "take the logarithm of the determinant's size: slogdet(...)[1]",
    "a determinant below 0 has no logarithm; a change of volume, and every positive one, has the same as before",
)
def log_abs_det(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if call(node, "logdet") is None or not isinstance(node, ast.Call):
        return None
    assert isinstance(node.func, ast.Attribute)
    name_end, end = source.span(node.func)[1], source.span(node)[1]
    return [Edit(name_end - len("logdet"), name_end, "slogdet"), Edit(end, end, "[1]")]


_MATRIX = ("logdet", "slogdet", "det", "inv", "inverse", "cholesky", "solve", "lu_factor", "qr")


@pattern(
    "jitter",
    "add a small multiple of the identity to the matrix",
    "a matrix with two equal rows has no inverse, and a logarithm of its determinant that is -inf",
)
def jitter(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    return _with_diagonal(source, node, "1e-6")


@pattern(
    "jitter_more",
    "add 1e-3 of the identity to the matrix",
    "a matrix of zeros or with equal rows gets a full rank; others change in the third digit at most",
)
def jitter_more(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    return _with_diagonal(source, node, "1e-3")


def _with_diagonal(source: Source, node: ast.AST, size: str) -> Iterable[Edit] | None:
    found = call(node, *_MATRIX)
    torch = name_of(source, "torch")
    if found is None or torch is None:
        return None
    matrix, again, edits = twice(source, found[1], "matrix")
    shape = f"*{again}.shape[-2:]" if found[0] == "qr" else f"{again}.shape[-1]"
    text = f"{matrix} + {size} * {torch}.eye({shape}).to({again})"
    is_argument = any(found[1] is a for a in getattr(node, "args", ()))
    return [*edits, Edit(*source.span(found[1]), text if is_argument else f"({text})")]


_VALUES = {"eigh": "eigvalsh", "svd": "svdvals"}


@pattern(
    "spread_values",
    "move equal singular values or eigenvalues apart, without a gradient, where there are any",
    "the derivative of the vectors divides by the gap to the next value; matrices with gaps stay as they are",
)
def spread_values(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, *_VALUES)
    torch = name_of(source, "torch")
    statement = source.statement(node)
    if found is None or torch is None or statement is None or not stands_alone(source, statement):
        return None
    home = (
        node.func.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        else None
    )
    if home is None or not is_namespace(home):
        return None
    made = hoisted(source, found[1], "matrix")
    if made is None:
        return None
    name, edit = made
    gap, indent = free_name(source, node, "gap"), source.indent(statement)
    lines = [
        edit.text,
        f"{indent}{gap} = {torch}.linalg.{_VALUES[found[0]]}({name}.detach()).diff(dim=-1).abs()"
        f".amin(-1)[..., None, None]{source.newline}",
        f"{indent}rising = {torch}.eye(*{name}.shape[-2:]).to({name}) * {torch}.arange(1.0, "
        f"1 + {name}.shape[-1]).to({name}){source.newline}",
        f"{indent}{name} = {torch}.where({gap} > 1e-6, {name}, {name}.detach() + 1e-2 * rising)"
        f"{source.newline}",
    ]
    return [Edit(edit.start, edit.end, "".join(lines)), Edit(*source.span(found[1]), name)]


@pattern(
    "atan2_off_origin",
    "keep atan2 off the origin",
    "at (0, 0) the angle has no derivative; anywhere else nothing changes",
)
def atan2_off_origin(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "atan2", "arctan2")
    torch = name_of(source, "torch")
    if found is None or torch is None or not found[2]:
        return None
    y, y_again, edits = twice(source, found[1], "rise")
    x, x_again, more = twice(source, found[2][0], "run")
    if y != y_again or x != x_again:
        return None
    moved = f"{torch}.where(({x} == 0) & ({y} == 0), {torch}.ones_like({x}), {x})"
    return [*edits, *more, Edit(*source.span(node), f"{torch}.atan2({y}, {moved})")]
