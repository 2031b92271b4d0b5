"""Targets that give a share to classes which are masked out."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .matching import call, dotted, free_name, functional, name_of, stands_alone, with_method
from .source import Source

__all__: list[str] = []


@pattern(
    "smooth_over_open",
    "spread the label smoothing over the classes that are not masked",
    "smoothing gives every class a share, and a masked one has probability 0; without a mask it is the same",
)
def smooth_over_open(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, ast.Call) or dotted(node.func).rpartition(".")[2] != "cross_entropy":
        return None
    given = {k.arg: k.value for k in node.keywords}
    amount = given.pop("label_smoothing", None)
    statement = source.statement(node)
    torch, home = name_of(source, "torch"), functional(source)
    if amount is None or given or len(node.args) != 2 or torch is None or home is None:
        return None
    if statement is None or not stands_alone(source, statement):
        return None
    names = [free_name(source, node, wish) for wish in ("scores", "is_open", "spread")]
    scores, is_open, spread = names
    logits, target = (source.text_of(a) for a in node.args)
    indent, share = source.indent(statement), source.text_of(amount)
    lines = [
        f"{scores} = {logits}",
        f"{is_open} = {scores} > {torch}.finfo({scores}.dtype).min / 2",
        f"{spread} = {home}.log_softmax({scores}, dim=1).masked_fill(~{is_open}, 0.0).sum(1)",
        f"{spread} = ({spread} / {is_open}.sum(1).clamp(min=1)).mean()",
    ]
    start = source.line_start(statement.lineno)
    whole = f"(1 - {share}) * {dotted(node.func)}({scores}, {target}) - {share} * {spread}"
    if not isinstance(source.parent(node), (ast.Return, ast.Assign, ast.Expr)):
        whole = f"({whole})"
    put = "".join(f"{indent}{line}{source.newline}" for line in lines)
    return [Edit(start, start, put), Edit(*source.span(node), whole)]


@pattern(
    "without_masked",
    "leave masked classes out of the sum: masked_fill of what is -inf",
    "a class with probability 0 by a mask cannot be learned; every other one counts as before",
)
def without_masked(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    for side in (node.right, node.left):
        if isinstance(side, ast.Name):
            text = f'.masked_fill({side.id} == float("-inf"), 0.0)'
            return with_method(source, side, text)
        found = call(side, "log_softmax", "log")
        if found is not None:
            return with_method(source, side, ".clamp(min=-1e4)")
    return None
