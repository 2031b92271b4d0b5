"""Targets that put probability on masked classes."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .matching import (
    call,
    clamped,
    dotted,
    free_name,
    functional,
    name_of,
    stands_alone,
    twice,
    with_method,
)
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


@pattern(
    "ignore_masked",
    "ignore targets whose class is masked out",
    "such a target has probability 0 whatever the model learns; all others count as before",
)
def ignore_masked(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, ast.Call) or len(node.args) < 2:
        return None
    torch = name_of(source, "torch")
    name = dotted(node.func).rpartition(".")[2]
    if torch is None or name not in ("cross_entropy", "nll_loss"):
        return None
    ignored = next(
        (source.text_of(k.value) for k in node.keywords if k.arg == "ignore_index"), "-100"
    )
    scores, again, edits = twice(source, node.args[0], "scores")
    target, target_again, more = twice(source, node.args[1], "classes")
    if scores != again or target != target_again:
        return None
    chosen = f"{scores}.gather(1, {target}.clamp(min=0).unsqueeze(1)).squeeze(1)"
    shut = f"{chosen} < {torch}.finfo({scores}.dtype).min / 2"
    return [
        *edits,
        *more,
        *([Edit(*source.span(node.args[0]), scores)] if edits else []),
        Edit(*source.span(node.args[1]), f"{target}.masked_fill({shut}, {ignored})"),
    ]


@pattern(
    "reduce_finite",
    "leave what is infinite by a mask out of the sum",
    "a class with probability 0 by a mask cannot be learned; every other one counts as before",
)
def reduce_finite(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "sum", "mean")
    torch = name_of(source, "torch")
    if found is None or torch is None or isinstance(found[1], ast.Constant):
        return None
    first, again, edits = twice(source, found[1], "terms")
    if first != again:
        return None
    text = f"{torch}.where({torch}.isfinite({first}), {first}, 0.0)"
    return [*edits, Edit(*source.span(found[1]), text)]


@pattern(
    "floor_log_prob",
    "give log probabilities a floor of -100, as binary_cross_entropy does",
    "a probability of 0 then costs 100 instead of infinitely much; larger ones stay as they are",
)
def floor_log_prob(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, ast.Call) or not node.args:
        return None
    if dotted(node.func).rpartition(".")[2] not in ("kl_div", "nll_loss", "cross_entropy"):
        return None
    return clamped(source, node.args[0], low="-100")
