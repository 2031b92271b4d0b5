"""Exponentials that stay within the range of their dtype."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .matching import call, clamped, functional, twice
from .source import Source

__all__: list[str] = []

_EXPS = ("exp", "expm1", "exp2", "exp_", "i0", "i1")


def _shifted(source: Source, node: ast.AST, largest: str) -> list[Edit] | None:
    found = call(node, "exp")
    if found is None or found[2] or found[3]:
        return None
    first, again, edits = twice(source, found[1], "logits")
    return [*edits, Edit(*source.span(node), f"({first} - {again}{largest}).exp()")]


@pattern(
    "shift_exp",
    "take the largest entry of each row off before the exponential",
    "in a ratio or a softmax the shift cancels; exp of at most 0 cannot overflow",
    is_equivalent=False,
)
def shift_exp(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    return _shifted(source, node, ".detach().amax(dim=-1, keepdim=True)")


@pattern(
    "shift_exp_all",
    "take the largest entry off before the exponential",
    "in a ratio the shift cancels; exp of at most 0 cannot overflow",
    is_equivalent=False,
)
def shift_exp_all(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    return _shifted(source, node, ".detach().max()")


def _bounded(
    source: Source, node: ast.AST, limit: str, low: str | None = None
) -> list[Edit] | None:
    found = call(node, *_EXPS)
    if found is None or found[2] or found[3]:
        return None
    return clamped(source, found[1], low=low, high=limit)


@pattern(
    "bound_exp",
    "bound what goes into the exponential: .clamp(max=20), in float16 .clamp(max=10)",
    "exp(20) is 5e8, far beyond an ordinary variance or rate and far below the dtype's limit",
)
def bound_exp(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    return _bounded(source, node, "10" if source.dtype == "float16" else "20")


@pattern(
    "bound_exp_high",
    "bound what goes into the exponential: .clamp(max=40)",
    "exp(40) is 2e17: its square still fits into float32",
)
def bound_exp_high(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    return None if source.dtype == "float16" else _bounded(source, node, "40")


@pattern(
    "bound_exp_low",
    "bound what goes into the exponential: .clamp(max=10), in float16 .clamp(max=5)",
    "exp(10) is 2e4; what is multiplied by it stays an ordinary number",
)
def bound_exp_low(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    return _bounded(source, node, "5" if source.dtype == "float16" else "10")


@pattern(
    "bound_exp_lowest",
    "bound what goes into the exponential: .clamp(max=5)",
    "exp(5) is 148; a product with it stays an ordinary number",
)
def bound_exp_lowest(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    return None if source.dtype == "float16" else _bounded(source, node, "5")


@pattern(
    "bound_exp_both",
    "bound what goes into the exponential at both ends: .clamp(-20, 20)",
    "a sum of such exponentials is neither infinite nor zero, so it can be divided by",
)
def bound_exp_both(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    return None if source.dtype == "float16" else _bounded(source, node, "20", low="-20")


def _bounded_everywhere(source: Source, node: ast.AST, limit: str) -> list[Edit] | None:
    """Bound the quantity itself, in every exponential of the file that uses it."""
    found = call(node, *_EXPS)
    first = _quantity(found[1]) if found is not None else None
    if first is None:
        return None
    uses = []
    for other in ast.walk(source.tree):
        taken = call(other, *_EXPS)
        use = _quantity(taken[1]) if taken is not None else None
        if use is not None and _name(use) == _name(first):
            is_negated = any(isinstance(n, ast.USub) for n in ast.walk(other))
            uses.append((use, f"-{limit}" if is_negated else None))
    if len(uses) < 2:
        return None
    made = [clamped(source, use, low=low, high=limit) for use, low in uses]
    return [edit for edits in made for edit in edits or ()]


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _quantity(node: ast.expr) -> ast.expr | None:
    """The only variable or attribute in an expression: `logvar` in `0.5 * logvar`."""
    inner = {id(n.value) for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    found = [
        n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)) and id(n) not in inner
    ]
    return found[0] if len(found) == 1 else None


@pattern(
    "bound_exp_everywhere",
    "bound what goes into the exponential, in each one that it goes into: .clamp(max=10)",
    "a log-variance is used for the spread and for its price; exp(10) is 2e4, and below nothing changes",
)
def bound_exp_everywhere(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    return _bounded_everywhere(source, node, "5" if source.dtype == "float16" else "10")


@pattern(
    "log_cosh",
    "write log(cosh(x)) without the exponential: |x| + softplus(-2 |x|) - log(2)",
    "cosh overflows at 89; its logarithm is nearly |x| there",
)
def log_cosh(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    log = call(node, "log")
    cosh = call(source.definition(log[1]), "cosh") if log and not log[2] else None
    if log is None or cosh is None:
        return None
    home = functional(source)
    if home is None:
        return None
    first, again, edits = twice(source, cosh[1], "deviation")
    moved = [
        *edits,
        *(
            [Edit(*source.span(cosh[1]), again)]
            if edits and source.definition(log[1]) is not log[1]
            else []
        ),
    ]
    text = f"({first}.abs() + {home}.softplus(-2 * {again}.abs()) - 0.6931471805599453)"
    return [*moved, Edit(*source.span(node), text)]
