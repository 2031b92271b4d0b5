"""Formulas of schedules: divisors, logarithms, powers and bounds in plain numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .choice import Candidate
from .edits import Edit, Remedy, apply
from .floors import divisor_of
from .source import Source

__all__ = ["argument_of", "schedule_candidates"]


def schedule_candidates(source: Source, line: int) -> list[Candidate]:
    """Changes of a formula at a line, the mildest first.

    >>> s = Source("def f(step):\\n    return 1 / (10 - step)\\n")
    >>> [c.text.splitlines()[1].strip() for c in schedule_candidates(s, 2)][0]
    'return 1 / max(10 - step, 1)'
    """
    scope = source.function_at(line)
    nodes = list(ast.walk(scope))
    near = [n for n in nodes if getattr(n, "lineno", 0) <= line <= getattr(n, "end_lineno", 0)]
    found: list[Candidate] = []
    for where in (near, nodes):
        for remedy in _remedies(source, where):
            text, done = apply(source.text, [remedy])
            if text != source.text and all(c.text != text for c in found):
                found.append(Candidate(done, text))
    return found


def _remedies(source: Source, nodes: list[ast.AST]) -> Iterator[Remedy]:
    for node in nodes:
        divisor = divisor_of(node)
        if divisor is not None and not isinstance(divisor, ast.Constant):
            yield from _limited(source, node, divisor, "max", "1", "divide by at least 1",
                                "the number of steps left is 0 there; every other one stays")  # fmt: skip
    for node in nodes:
        for part, kind, limit, title, why in _parts(node):
            if not isinstance(part, ast.Constant):
                yield from _limited(source, node, part, kind, limit, title, why)
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            yield from _bounded_product(source, node)


_NEGATIVE = "a negative number has no real root"
_Part = tuple[ast.expr, str, str, str, str]


def _parts(node: ast.AST) -> Iterator[_Part]:
    """Arguments with a limit: which, max or min, of what, in words, and why."""
    base = node.left if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) else None
    base = base if base is not None else argument_of(node, "pow", "power", "float_power")
    if base is not None:
        yield base, "max", "1", "count from 1", "0 to a negative power is infinite"
        yield base, "max", "0.0", "keep the base of the power at 0 or above", _NEGATIVE
    if (log := argument_of(node, "log", "log10", "log2")) is not None:
        why = "the logarithm of 0 is infinite"
        yield log, "max", "1e-8", "give the logarithm a floor", why
    if (root := argument_of(node, "sqrt", "rsqrt")) is not None:
        yield root, "max", "0.0", "keep the root's argument at 0 or above", _NEGATIVE
        yield root, "max", "1.0", "keep the root's argument at 1 or above", "0 has no inverse"
    if (exponent := argument_of(node, "exp", "expm1")) is not None:
        why = "a decay never grows beyond its start"
        yield exponent, "min", "0.0", "keep the exponent at 0 or below", why


_MODULES = ("math", "np", "numpy", "torch", "th")


def argument_of(node: ast.AST, *names: str) -> ast.expr | None:
    """What `math.log(x)`, `log(x)`, `torch.log(x)` and `x.log()` take the logarithm of."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Name):
        return node.args[0] if node.func.id in names and node.args else None
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in names:
        return None
    if isinstance(node.func.value, ast.Name) and node.func.value.id in _MODULES:
        return node.args[0] if node.args else None
    return node.func.value


def _limited(
    source: Source, node: ast.AST, part: ast.expr, kind: str, limit: str, title: str, why: str
) -> Iterator[Remedy]:
    """Once as a plain number, once as a tensor."""
    text = source.text_of(part)
    key = "min" if kind == "max" else "max"
    for new in (f"{kind}({text}, {limit})", f"{_group(part, text)}.clamp({key}={limit})"):
        yield _made(source, node, part, new, title, why)


def _bounded_product(source: Source, node: ast.BinOp) -> Iterator[Remedy]:
    """0 times infinite: the factor that was made elsewhere, at a number that can be multiplied."""
    for side in (node.left, node.right):
        if isinstance(side, (ast.Name, ast.Attribute)):
            text = source.text_of(side)
            for new in (f"max({text}, -20.0)", f"{text}.clamp(min=-20.0)"):
                yield _made(source, node, side, new, "bound the factor of the formula from below",
                            "0 times an infinite number is none; exp(-20) is next to 0")  # fmt: skip


def _group(node: ast.expr, text: str) -> str:
    return (
        text
        if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        else f"({text})"
    )


def _made(source: Source, node: ast.AST, part: ast.expr, text: str, title: str, why: str) -> Remedy:
    start, end = source.span(part)
    if source.text[start - 1 : start] == "(" and source.text[end : end + 1] == ")":
        before = source.text[: start - 1][-1:]
        if not (before.isalnum() or before in ("_", ")", "]")):
            start, end = start - 1, end + 1
    return Remedy(
        name="guard_schedule", title=f"guard the schedule's formula: {title}", why=why,
        line=getattr(node, "lineno", 1), edits=(Edit(start, end, text),),
    )  # fmt: skip
