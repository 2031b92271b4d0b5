"""Logarithms computed in log space."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .matching import (
    call,
    dotted,
    floored,
    functional,
    hoisted,
    is_in_parentheses,
    is_namespace,
    is_simple,
    name_of,
    rest_of_call,
)
from .source import Source

_PICKS = (
    "gather",
    "squeeze",
    "unsqueeze",
    "view",
    "reshape",
    "index_select",
    "flatten",
    "transpose",
    "permute",
    "diagonal",
    "diag",
)


def _whole(source: Source, node: ast.AST, text: str) -> list[Edit]:
    start, end = source.span(node)
    return [Edit(start, end, text)]


@pattern(
    "log_space",
    "take the logarithm in log space: log_softmax, logsigmoid",
    "the probability underflows to 0, its logarithm computed at once does not",
)
def log_space(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "log")
    if found is None or found[2] or found[3]:
        return None
    return _taken_in_log_space(source, node, found[1])


@pattern(
    "log_space_without_epsilon",
    "take the logarithm in log space, which needs no epsilon: log_softmax, logsigmoid",
    "an epsilon or a clamp under the logarithm rounds away in half precision and gives wrong gradients; "
    "the logarithm of a tiny probability is an ordinary number",
)
def log_space_without_epsilon(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "log")
    if found is None or found[2] or found[3]:
        return None
    operand = without_epsilon(source.definition(found[1]))
    if operand is found[1]:
        return None
    return _taken_in_log_space(source, node, operand)


def _taken_in_log_space(source: Source, node: ast.AST, operand: ast.expr) -> list[Edit] | None:
    picked = without_epsilon(source.definition(operand))
    base = _picked_from(source, picked)
    written = without_epsilon(source.definition(base))
    if not source.is_unchanged(written, node):
        return None
    made = _in_log_space(source, written, is_moved=written.lineno != getattr(node, "lineno", 0))
    if made is None:
        return None
    start, end = source.span(picked)
    first, last = source.span(base)
    text = source.text[start:first] + made[0] + source.text[last:end]
    return [*_whole(source, node, text), *made[1]]


def without_epsilon(node: ast.expr) -> ast.expr:
    """`p` in `p + eps`, in `p.clamp(min=eps)` and in `torch.clamp(p, eps, 1 - eps)`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for side, other in ((node.left, node.right), (node.right, node.left)):
            if _is_epsilon(other):
                return without_epsilon(side)
    found = call(node, "clamp", "clamp_min", "clip")
    return without_epsilon(found[1]) if found is not None else node


def _is_epsilon(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and 0 < node.value < 1e-2
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return isinstance(name, str) and any(word in name.lower() for word in ("eps", "tiny"))


def _picked_from(source: Source, node: ast.expr) -> ast.expr:
    """`p` in `p.gather(1, i).squeeze(1)` and in `p[rows, i]`: selection and log can be swapped."""
    while True:
        found = call(node, *_PICKS)
        if found is not None and isinstance(node, ast.Call) and not _is_function(node):
            node = found[1]
        elif isinstance(node, ast.Subscript):
            node = node.value
        else:
            return node


def _is_function(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and is_namespace(node.func.value)


def _in_log_space(source: Source, node: ast.expr, is_moved: bool) -> tuple[str, list[Edit]] | None:
    """The logarithm of this expression; and a line for the logits, if they are used elsewhere."""
    inner, is_rest = _without_one_minus(node)
    inner = source.definition(inner) if is_rest else inner
    found = call(inner, "sigmoid") if is_rest else call(inner, "sigmoid", "softmax")
    if found is None or not source.is_unchanged(inner, node):
        return None
    name, x, args, keywords = found
    text, edits = source.text_of(x), []
    if (is_moved or inner is not _without_one_minus(node)[0]) and not is_simple(x):
        made = hoisted(source, x, "logits")
        if made is None:
            return None
        text, edits = made[0], [made[1], Edit(*source.span(x), made[0])]
    if name == "softmax":
        made_text = _log_softmax(inner, text, rest_of_call(source, args, keywords))
        return None if made_text is None else (made_text, edits)
    home = functional(source)
    if home is None or args or keywords:
        return None
    if is_rest:
        is_atom = bool(edits) or is_simple(x) or isinstance(x, ast.Call)
        text = f"-{text}" if is_atom else f"-({text})"
    return f"{home}.logsigmoid({text})", edits


def _log_softmax(node: ast.expr, text: str, rest: str) -> str | None:
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    if not rest:
        return None
    if is_namespace(node.func.value):
        return f"{dotted(node.func.value)}.log_softmax({text}, {rest})"
    is_atom = text.replace("_", "a").replace(".", "a").isalnum() or text.endswith((")", "]"))
    return f"{text if is_atom else f'({text})'}.log_softmax({rest})"


def _without_one_minus(node: ast.expr) -> tuple[ast.expr, bool]:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return node, False
    one = node.left
    if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Add):  # 1 + eps - p
        sides = (one.left, one.right)
        one = next((a for a, b in (sides, sides[::-1]) if _is_epsilon(b)), one)
    is_one = isinstance(one, ast.Constant) and one.value == 1
    return (node.right, True) if is_one else (node, False)


@pattern(
    "logsumexp",
    "use torch.logsumexp",
    "it subtracts the largest entry first, so that exp cannot overflow",
)
def logsumexp(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    log = call(node, "log")
    inside = without_epsilon(source.definition(log[1])) if log else None
    total = call(source.definition(inside), "sum") if log and inside and not log[2] else None
    torch = name_of(source, "torch")
    if log is None or total is None or torch is None:
        return None
    exp = call(source.definition(total[1]), "exp")
    rest = rest_of_call(source, total[2], total[3])
    if exp is None or exp[2] or not rest:
        return None
    is_moved = (
        source.definition(log[1]) is not log[1] or source.definition(total[1]) is not total[1]
    )
    if is_moved and not is_simple(exp[1]):
        return None
    return _whole(source, node, f"{torch}.logsumexp({source.text_of(exp[1])}, {rest})")


@pattern(
    "log_of_share",
    "take the logarithm of the share in log space: log_softmax of what goes into the exponential",
    "exp(x) / sum(exp(x)) overflows above and is 0 below; its logarithm is an ordinary number",
)
def log_of_share(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    log = call(node, "log")
    share = source.definition(log[1]) if log and not log[2] else None
    if not isinstance(share, ast.BinOp) or not isinstance(share.op, ast.Div):
        return None
    total = call(source.definition(share.right), "sum")
    picked = source.definition(share.left)
    base = _picked_from(source, picked)
    if total is None or ast.dump(base) != ast.dump(total[1]):
        return None
    exp = call(source.definition(base), "exp")
    dim = {k.arg: k.value for k in total[3]}.get("dim") or (total[2][0] if total[2] else None)
    torch = name_of(source, "torch")
    if exp is None or dim is None or torch is None:
        return None
    text, edits = source.text_of(exp[1]), []
    if not is_simple(exp[1]):
        made = hoisted(source, exp[1], "logits")
        if made is None:
            return None
        text, edits = made[0], [made[1], Edit(*source.span(exp[1]), made[0])]
    start, end = source.span(picked)
    first, last = source.span(base)
    made_text = f"{torch}.log_softmax({text}, dim={source.text_of(dim)})"
    whole = source.text[start:first] + made_text + source.text[last:end]
    return [*edits, *_whole(source, node, whole)]


@pattern(
    "softmax",
    "use torch.softmax",
    "it subtracts the largest entry first; inf / inf and 0 / 0 cannot happen",
)
def softmax(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    above = call(source.definition(node.left), "exp")
    total = call(source.definition(node.right), "sum")
    below = call(source.definition(total[1]), "exp") if total else None
    torch = name_of(source, "torch")
    if above is None or total is None or below is None or torch is None:
        return None
    if ast.dump(above[1]) != ast.dump(below[1]) or not is_simple(above[1]):
        return None
    dim = _kept_dimension(source, total[2], total[3])
    if dim is None:
        return None
    return _whole(source, node, f"{torch}.softmax({source.text_of(above[1])}, dim={dim})")


def _kept_dimension(
    source: Source, args: list[ast.expr], keywords: list[ast.keyword]
) -> str | None:
    given = {k.arg: k.value for k in keywords}
    keepdim = given.get("keepdim") or (args[1] if len(args) > 1 else None)
    dim = given.get("dim") or (args[0] if args else None)
    if not isinstance(keepdim, ast.Constant) or keepdim.value is not True or dim is None:
        return None
    return source.text_of(dim)


@pattern(
    "with_logits",
    "use binary_cross_entropy_with_logits on what goes into the sigmoid",
    "it keeps a gradient where the sigmoid is saturated, and works in half precision",
)
def with_logits(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return None
    if node.func.attr != "binary_cross_entropy" or not is_namespace(node.func.value):
        return None
    given = node.args[0]
    written = source.definition(given)
    found = call(written, "sigmoid")
    if found is None or (written is not given and not is_simple(found[1])):
        return None
    end = source.span(node.func)[1]
    start, last = source.span(given)
    return [Edit(end, end, "_with_logits"), Edit(start, last, source.text_of(found[1]))]


@pattern(
    "floor_log_eps",
    "give the logarithm a floor: the epsilon of its dtype",
    "the value stays finite and ordinary, and the gradient at 0 is 0; above the floor nothing changes",
    is_equivalent=False,
)
def floor_log_eps(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "log", "log2", "log10", "log_", "xlogy")
    if found is None:
        return None
    inside = found[2][0] if found[0] == "xlogy" and found[2] else found[1]
    return floored(source, inside, "eps")


@pattern(
    "floor_log",
    "give the logarithm a floor: the smallest number of the dtype",
    "the value stays finite and the gradient at 0 is 0; above the floor nothing changes",
)
def floor_log(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "log", "log2", "log10", "log_", "xlogy", "lgamma", "digamma")
    if found is None:
        return None
    inside = found[2][0] if found[0] == "xlogy" and found[2] else found[1]
    return floored(source, inside, "tiny")


@pattern(
    "softmax_later",
    "leave the exponential to torch.softmax, where it is divided by its own sum",
    "it subtracts the largest entry first; inf / inf and 0 / 0 cannot happen",
)
def softmax_later(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    """`t = exp(x)` and, further down, `t / t.sum(1, keepdim=True)`, which is all that reads it."""
    torch = name_of(source, "torch")
    if torch is None or not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return None
    target, exp = node.targets[0], call(node.value, "exp")
    if not isinstance(target, ast.Name) or exp is None or exp[2] or exp[3]:
        return None
    reads = _reads_until_bound_again(source, node, target.id)
    share = source.parent(reads[0]) if len(reads) == 2 else None
    if not isinstance(share, ast.BinOp) or not isinstance(share.op, ast.Div):
        return None
    total = call(share.right, "sum")
    if total is None or share.left is not reads[0] or total[1] is not reads[1]:
        return None
    dim = _kept_dimension(source, total[2], total[3])
    if dim is None:
        return None
    start, end = source.span(share)
    if is_in_parentheses(source.text, start, end):
        start, end = start - 1, end + 1
    text = f"{torch}.softmax({target.id}, dim={dim})"
    return [Edit(*source.span(node.value), source.text_of(exp[1])), Edit(start, end, text)]


def _reads_until_bound_again(source: Source, first: ast.Assign, name: str) -> list[ast.Name]:
    """Where a variable is read between a statement and the next one of its block that gives it a new value."""
    block = source.block(first)
    if first not in block:
        return []
    found: list[ast.Name] = []
    for statement in block[block.index(first) + 1 :]:
        uses = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name]
        found += [n for n in uses if isinstance(n.ctx, ast.Load)]
        if len(uses) > sum(isinstance(n.ctx, ast.Load) for n in uses):
            is_plain = isinstance(statement, ast.Assign)
            return sorted(found, key=lambda n: (n.lineno, n.col_offset)) if is_plain else []
    is_last = isinstance(source.parent(first), (ast.FunctionDef, ast.AsyncFunctionDef))
    return sorted(found, key=lambda n: (n.lineno, n.col_offset)) if is_last else []
