"""Formulas of schedules, which compute with plain numbers: divisors, logarithms, powers and bounds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .choice import Candidate
from .edits import Edit, Remedy, apply
from .floors import divisor_of
from .matching import call, name_of
from .source import Source

__all__ = ["schedule_candidates"]


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
            text = source.text_of(divisor)
            for new in (f"max({text}, 1)", f"{_group(divisor, text)}.clamp(min=1)"):
                yield _made(source, node, divisor, new, "divide by at least 1",
                            "the number of steps left is 0 there; every other one stays")  # fmt: skip
    for node in nodes:
        power = node if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) else None
        found = call(node, "pow")
        base = power.left if power is not None else found[1] if found is not None else None
        if base is not None and not isinstance(base, ast.Constant):
            text = source.text_of(base)
            for new in (f"max({text}, 1)", f"{_group(base, text)}.clamp(min=1)"):
                yield _made(source, node, base, new, "count from 1",
                            "0 to a negative power is infinite")  # fmt: skip
            yield _made(source, node, base, f"max({text}, 0.0)", "keep the base of the power at 0 or above",
                        "a negative number has no real root")  # fmt: skip
        log = call(node, "log", "log10", "log2")
        if log is None and isinstance(node, ast.Call) and _is_math(node.func, "log"):
            log = ("log", node.args[0], [], []) if node.args else None
        if log is not None:
            text = source.text_of(log[1])
            for new in (f"max({text}, 1e-8)", f"{_group(log[1], text)}.clamp(min=1e-8)"):
                yield _made(source, node, log[1], new, "give the logarithm a floor",
                            "the logarithm of 0 is infinite")  # fmt: skip
        root = node if isinstance(node, ast.Call) and _is_math(node.func, "sqrt") else None
        if root is not None and root.args:
            text = source.text_of(root.args[0])
            yield _made(source, node, root.args[0], f"max({text}, 0.0)", "keep the root's argument at 0 or above",
                        "a negative number has no real root")  # fmt: skip
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            yield from _bounded_product(source, node)


def _bounded_product(source: Source, node: ast.BinOp) -> Iterator[Remedy]:
    """0 times infinite: the factor that was made elsewhere, at a number that can be multiplied."""
    for side in (node.left, node.right):
        if isinstance(side, ast.Name) or (
            isinstance(side, ast.Attribute) and not name_of(source, side.attr)
        ):
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


def _is_math(function: ast.expr, name: str) -> bool:
    return isinstance(function, ast.Name) and function.id == name


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
