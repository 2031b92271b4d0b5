"""Means over possibly empty sets, deviations of possibly one value, and empty rows."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .matching import call, dotted, is_namespace, name_of, twice
from .source import Source

__all__: list[str] = []


@pattern(
    "mean_or_zero",
    "write the mean as a sum over at least one element",
    "over nothing it is 0 instead of 0 / 0; over anything else it is the same",
)
def mean_or_zero(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, "mean")
    if found is None or found[2] or found[3]:
        return None
    first, again, edits = twice(source, found[1], "selected")
    text = f"({first}.sum() / max({again}.numel(), 1))"
    if not _is_inside(source, node):
        text = text[1:-1]
    return [*edits, Edit(*source.span(node), text)]


def _is_inside(source: Source, node: ast.AST) -> bool:
    return isinstance(source.parent(node), (ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Compare))


_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
           "binary_cross_entropy_with_logits", "kl_div")  # fmt: skip


@pattern(
    "loss_or_zero",
    "sum the loss and divide by the number of targets, at least 1",
    "a batch without a target costs 0 instead of 0 / 0; any other costs the same",
)
def loss_or_zero(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if (
        not isinstance(node, ast.Call)
        or len(node.args) < 2
        or not isinstance(node.func, ast.Attribute)
    ):
        return None
    name = node.func.attr
    if not is_namespace(node.func.value) or any(k.arg == "reduction" for k in node.keywords):
        return None
    first, again, edits = twice(source, node.args[1], "target")
    if name in ("cross_entropy", "nll_loss"):
        if len(node.args) > 2:
            return None
        count = _count_of(source, node, again)
    elif name in _LOSSES:
        count = f"max({again}.numel(), 1)"
    else:
        return None
    start, end = source.span(node)
    text = source.text[start:end]
    a, b = source.span(node.args[1])
    text = text[: a - start] + first + text[b - start :]
    last = text.rstrip(")")
    comma = "" if last.rstrip().endswith(",") else ", "
    text = f'{text[:-1].rstrip()}{comma}reduction="sum") / {count}'
    if _is_inside(source, node):
        text = f"({text})"
    return [*edits, Edit(start, end, text)]


def _count_of(source: Source, node: ast.Call, target: str) -> str:
    """The divisor of a mean over classes: the number of targets, or the sum of their weights."""
    given = {k.arg: source.text_of(k.value) for k in node.keywords}
    ignored = given.get("ignore_index", "-100")
    if "weight" not in given:
        return f"({target} != {ignored}).sum().clamp(min=1)"
    weights = f"{given['weight']}[{target}]"
    if "ignore_index" in given:
        weights = f"{weights}[{target} != {ignored}]"
    return f"{weights}.sum().clamp(min=1e-6)"


@pattern(
    "nan_to_zero",
    "count it as 0 where there was nothing to average: torch.nan_to_num",
    "a batch in which nothing qualifies is an ordinary batch; its share is 0",
)
def nan_to_zero(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    torch = name_of(source, "torch")
    if torch is None or not isinstance(node, ast.Call):
        return None
    name = dotted(node.func).rpartition(".")[2] or getattr(node.func, "attr", "")
    is_loss = "loss" in name or "cross_entropy" in name or "criterion" in name
    if name not in ("mean", "std", "var", "median") and not is_loss:
        return None
    return [Edit(*source.span(node), f"{torch}.nan_to_num({source.text_of(node)})")]


@pattern(
    "spread_of_one",
    "a deviation over one element is 0: correction=min(1, n - 1)",
    "the sample deviation divides by n - 1; over two and more elements nothing changes",
)
def spread_of_one(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    return _spread_of_one(source, node)


@pattern(
    "spread_of_one_floored",
    "a deviation over one element is 0: correction=min(1, n - 1), and a floor to divide by",
    "the sample deviation divides by n - 1, and what is divided by it needs more than 0; other deviations stay",
)
def spread_of_one_floored(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    above = source.parent(node)
    is_divisor = isinstance(above, ast.BinOp) and isinstance(above.op, ast.Div)
    if not is_divisor or getattr(above, "right", None) is not node:
        return None
    return _spread_of_one(source, node, ".clamp(min=1e-8)")


def _spread_of_one(source: Source, node: ast.AST, end: str = "") -> Iterable[Edit] | None:
    found = call(node, "std", "var", "std_mean", "var_mean")
    if found is None or not isinstance(node, ast.Call):
        return None
    given = {k.arg: k.value for k in found[3]}
    if set(given) - {"dim", "keepdim", "unbiased"} or len(found[2]) > 1:
        return None
    dim = given.get("dim") or (found[2][0] if found[2] else None)
    if isinstance(given.get("unbiased"), ast.Name):
        return None
    first, again, edits = twice(source, found[1], "values")
    over = dim.elts if isinstance(dim, (ast.Tuple, ast.List)) else [dim] if dim is not None else []
    count = " * ".join(f"{again}.size({source.text_of(d)})" for d in over) or f"{again}.numel()"
    rest = [source.text_of(a) for a in found[2]]
    rest += [source.text_of(k) for k in found[3] if k.arg != "unbiased"]
    rest.append(f"correction=min(1, {count} - 1)")
    text = f"{first}.{found[0]}({', '.join(rest)})"
    if found[0].endswith("_mean"):
        torch = name_of(source, "torch") or "torch"
        text = f"{torch}.{found[0]}({first}, {', '.join(rest)})"
    return [*edits, Edit(*source.span(node), text + end)]


_INFINITE = ("-inf", "-infinity")


@pattern(
    "finite_mask",
    "mask with the lowest number of the dtype instead of -inf",
    "a row that keeps an entry gives the same; a row without one stays finite",
)
def finite_mask(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    torch = name_of(source, "torch")
    if torch is None or not _is_minus_infinity(node):
        return None
    statement = source.parent(node)
    while statement is not None and not isinstance(statement, (ast.Call, ast.stmt)):
        statement = source.parent(statement)
    tensor = _masked(statement, node)
    if tensor is None:
        kind = f"{torch}.{source.dtype}" if source.dtype else f"{torch}.get_default_dtype()"
    else:
        kind = f"{tensor}.dtype"
    return [Edit(*source.span(node), f"{torch}.finfo({kind}).min")]


def _is_minus_infinity(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = node.operand
        if isinstance(inner, ast.Call) and dotted(inner.func) == "float" and inner.args:
            value = inner.args[0]
            return isinstance(value, ast.Constant) and str(value.value).lower() in (
                "inf",
                "infinity",
            )
        return dotted(inner).rpartition(".")[2].lower() in ("inf", "infinity")
    if isinstance(node, ast.Call) and dotted(node.func) == "float" and node.args:
        value = node.args[0]
        return isinstance(value, ast.Constant) and str(value.value).lower() in _INFINITE
    return False


def _masked(holder: ast.AST | None, node: ast.AST) -> str | None:
    """The tensor whose entries are masked, if it has a name."""
    found = call(holder, "masked_fill", "masked_fill_") if holder is not None else None
    if found is not None and dotted(found[1]):
        return dotted(found[1])
    found = call(holder, "where") if holder is not None else None
    if found is not None and isinstance(holder, ast.Call):
        others = [a for a in (*holder.args[1:], found[1]) if a is not node and dotted(a)]
        return dotted(others[0]) if others else None
    if isinstance(holder, ast.Assign) and isinstance(holder.targets[0], ast.Subscript):
        return dotted(holder.targets[0].value) or None
    return None


_OVER_ROWS = ("softmax", "log_softmax", "logsumexp", "cross_entropy", "nll_loss", "Categorical")


@pattern(
    "open_rows",
    "open rows in which everything is masked",
    "a row of nothing but -inf has nothing to normalize; every other row is as before",
)
def open_rows(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    found = call(node, *_OVER_ROWS)
    if found is None or isinstance(found[1], ast.Constant):
        return None
    given = {k.arg: k.value for k in found[3]}
    dim = given.get("dim") or (found[2][0] if found[2] and "loss" not in found[0] else None)
    axis = source.text_of(dim) if dim is not None and "entropy" not in found[0] else "-1"
    first, again, edits = twice(source, found[1], "scores")
    shut = f'({first} == float("-inf")).all(dim={axis}, keepdim=True)'
    if first != again:
        return None  # the name would be used before its assignment
    return [*edits, Edit(*source.span(found[1]), f"{again}.masked_fill({shut}, 0.0)")]


@pattern(
    "open_padding",
    "do not mask a row of attention from end to end",
    "a sample without a valid entry then attends to its padding; every other one is as before",
)
def open_padding(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, ast.Call):
        return None
    for keyword in node.keywords:
        if keyword.arg not in ("key_padding_mask", "src_key_padding_mask", "attn_mask"):
            continue
        if isinstance(keyword.value, ast.Constant):
            continue
        first, again, edits = twice(source, keyword.value, "mask")
        if first != again:
            return None
        is_kept = keyword.arg == "attn_mask" and "scaled_dot" in dotted(node.func)
        text = f"{first} & ~{again}.all(dim=-1, keepdim=True)"
        if is_kept:
            text = f"{first} | ~{again}.any(dim=-1, keepdim=True)"
        return [*edits, Edit(*source.span(keyword.value), text)]
    return None


@pattern(
    "no_weights",
    "let attention return no weights, since nothing uses them: need_weights=False",
    "torch then computes it fused, and a row without a valid entry gives zeros instead of 0 / 0",
)
def no_weights(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    """For `nn.MultiheadAttention`, where two masks that each leave an entry may together leave none."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    given = {k.arg for k in node.keywords}
    if not given & {"key_padding_mask", "attn_mask"} or given & {"need_weights", None}:
        return None
    is_positional = len(node.args) > 3 or any(isinstance(a, ast.Starred) for a in node.args)
    if "scaled_dot" in dotted(node.func) or is_positional or not _is_only_first_used(source, node):
        return None
    end = source.span(node.keywords[-1])[1]
    return [Edit(end, end, ", need_weights=False")]


def _is_only_first_used(source: Source, node: ast.AST) -> bool:
    """Whether the second part of a pair that a call returns is thrown away."""
    holder = source.parent(node)
    if isinstance(holder, ast.Subscript):
        return isinstance(holder.slice, ast.Constant) and holder.slice.value == 0
    if not isinstance(holder, ast.Assign) or len(holder.targets) != 1:
        return False
    pair = holder.targets[0]
    if not isinstance(pair, ast.Tuple) or len(pair.elts) != 2:
        return False
    second = pair.elts[1]
    return isinstance(second, ast.Name) and not any(
        isinstance(n, ast.Name) and n.id == second.id and isinstance(n.ctx, ast.Load)
        for n in ast.walk(source.scope(node))
    )


@pattern(
    "zeros",
    "allocate zeros instead of memory that nobody has written",
    "what is not filled later is then 0; what is filled is the same",
)
def zeros(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    new = {"empty": "zeros", "empty_like": "zeros_like", "new_empty": "new_zeros"}.get(
        node.func.attr
    )
    end = source.span(node.func)[1]
    if new is not None:
        return [Edit(end - len(node.func.attr), end, new)]
    is_class = node.func.attr in ("Tensor", "FloatTensor", "HalfTensor", "DoubleTensor")
    is_size = all(not isinstance(a, (ast.List, ast.Tuple)) for a in node.args)
    if is_class and is_namespace(node.func.value) and node.args and is_size:
        return [Edit(end - len(node.func.attr), end, "zeros")]
    return None


_RANDOM = {
    "empty": "randn",
    "empty_like": "randn_like",
    **dict.fromkeys(("Tensor", "FloatTensor"), "randn"),
}


@pattern(
    "small_random",
    "start with small random numbers instead of memory that nobody has written",
    "unlike zeros they have a norm to divide by, and no two of them learn the same",
    is_equivalent=False,
)
def small_random(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    new = _RANDOM.get(node.func.attr)
    is_size = all(not isinstance(a, (ast.List, ast.Tuple)) for a in node.args)
    is_class = node.func.attr.endswith("Tensor")
    if new is None or not is_namespace(node.func.value) or (is_class and not is_size):
        return None
    end, last = source.span(node.func)[1], source.span(node)[1]
    return [Edit(end - len(node.func.attr), end, new), Edit(last, last, " * 0.02")]


@pattern(
    "zeroed",
    "set fresh memory to zero before it is used",
    "what is not filled later is then 0; what is filled is the same",
)
def zeroed(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    statement = source.statement(node)
    if not isinstance(statement, ast.Assign) or statement.value is not node:
        return None
    if not isinstance(node, ast.Call):
        return None
    end = source.span(node)[1]
    return [Edit(end, end, ".zero_()")]
