"""Derives facts about an operation's result from facts about its operands."""

from __future__ import annotations

import ast
from collections.abc import Callable

from . import arithmetic
from . import values as v
from .operation import Operation, is_small
from .values import Value
from .vocabulary import BOOLEAN, LAYERS, LOSSES, MAKES, PASSES_ON, SAVES_RESULT

__all__ = ["result"]

_WIDE_DTYPES = ("float32", "float64", "double", "float")
_ARITHMETIC = ("add", "sub", "mul", "div")


def result(op: Operation) -> Value:
    """The facts of an operation's result."""
    name = op.name
    if name in PASSES_ON:
        return _same(op)
    rule = _RULES.get(name)
    if rule is not None:
        facts = rule(op)
    elif name in LAYERS:
        facts = v.UNBOUNDED
    elif name in MAKES:
        facts = v.NOGRAD | v.FIXED | (v.NEGINF if _is_filled_with_inf(op) else 0)
    elif name in LOSSES:
        facts = op.first.facts & v.SELECTED
    elif name in BOOLEAN:
        facts = v.MASK | v.NOGRAD
    else:
        facts = 0
    if name in SAVES_RESULT:
        facts |= v.SAVED
    return Value(facts | _carried(op), op.node)


def _is_filled_with_inf(op: Operation) -> bool:
    return any(x.has(v.INF) and x.has(v.NEGATIVE) for x in (*op.args, *op.values.values()))


def _carried(op: Operation) -> int:
    """Facts about dtype and gradient are kept by an operation if they hold for all operands."""
    every = -1
    some = 0
    for arg in op.args:
        if not arg.has(v.PY):
            every &= arg.facts
        some |= arg.facts
    kept = (some & (v.HALF | v.BF16 | v.WIDE)) if some & v.WIDE == 0 else some & v.WIDE
    if op.name in _ARITHMETIC:
        kept |= _named(op)
    if every == -1:
        return kept
    return kept | (every & (v.NOGRAD | v.NP | v.FIXED))


def _named(op: Operation) -> int:
    """A result is known by names only if one of its tensors is."""
    return v.NAMED if any(a.has(v.NAMED) and not a.has(v.PY) for a in op.args) else 0


def _same(op: Operation) -> Value:
    if op.name in ("cat", "concat", "stack", "vstack", "hstack") and op.first.items:
        facts = -1
        for item in op.first.items:
            facts &= item.facts
        return Value(facts & ~v.SAVED, op.node)
    facts = op.first.facts & ~v.SAVED
    if op.name == "masked_select":
        facts |= v.SELECTED
    return Value(facts, op.node, calls=op.first.calls)


def _sum(op: Operation) -> int:
    f = op.first.facts
    out = v.SUM | (f & (v.NONNEG | v.SAFE | v.ZERO | v.SELECTED | v.NP | v.DIFFERENCE))
    if f & v.SQUARE:
        out |= v.SUMSQ | v.NONNEG | v.ZERO | (f & (v.NAMED | v.LOCAL))
    if f & v.MASK:
        out |= v.COUNT | v.NONNEG | v.ZERO | (f & (v.NAMED | v.LOCAL))
    if f & v.EXP:
        out |= v.SUMEXP | v.NONNEG | (f & v.BOUNDED)
    if f & v.PROB:
        out |= v.PROBSUM | v.NONNEG
    if f & v.COUNT:
        out |= v.COUNT | v.ZERO | v.NONNEG | (f & (v.NAMED | v.LOCAL))
    if f & v.UNIT:
        out |= v.COS
    return out & ~(v.SAFE if f & (v.MASK | v.SQUARE) else 0)


def _mean(op: Operation) -> int:
    f = op.first.facts
    kept = v.NONNEG | v.SAFE | v.ZERO | v.PROB | v.EXP | v.BOUNDED | v.ABS | v.RELU
    out = f & (kept | v.DIFFERENCE)
    if f & v.SQUARE:
        out |= v.MEANSQ | v.SUMSQ | v.NONNEG | v.ZERO
    if f & v.MASK:
        out |= v.NONNEG | v.ZERO
    return out | (v.MEAN if not f & v.SQUARE else 0)


def _clamp(op: Operation) -> int:
    low = op.expression(1, "min", "min_val", "min_value")
    high = op.expression(2, "max", "max_val", "max_value")
    f = op.first.facts & ~(v.SOFTMAX | v.SIGMOID | v.ZERO | v.SUMSQ | v.COUNT | v.NORM | v.STD)
    if op.number(2, "max", "max_val", "max_value") == 1:
        f |= v.ARC
    if high is not None and not _is_none(high):
        f = (f | v.BOUNDED) & ~(v.COS | v.UNBOUNDED | v.TANH)
    if low is None or _is_none(low):
        return op.first.facts | (f & (v.BOUNDED | v.ARC))
    number = op.number(1, "min", "min_val", "min_value")
    if number is not None and number == 0:
        f = f & ~v.MOMENT | v.NONNEG | v.ZERO | v.RELU
        return f if not op.first.has(v.PROB) else f | v.PROB
    if number is not None and number < 0:
        return f & ~v.COS
    return (f | v.SAFE) & ~(v.PROB | v.COS | v.MOMENT | v.ZERO | v.RELU)


def _clamp_min(op: Operation) -> int:
    number = op.number(1, "min")
    f = op.first.facts & ~(v.SOFTMAX | v.SIGMOID)
    if number == 0:
        return f & ~v.MOMENT | v.NONNEG | v.ZERO | v.RELU
    return (f | v.SAFE) & ~(v.PROB | v.ZERO | v.MOMENT | v.RELU)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _softmax(op: Operation) -> int:
    return v.PROB | v.NONNEG | v.SOFTMAX | v.BOUNDED


def _log(op: Operation) -> int:
    f = op.first.facts
    out = v.LOGPROB if f & v.PROB else 0
    return out | (v.BOUNDED if f & v.PROB else 0)


def _masked_fill(op: Operation) -> int:
    filled = op.value(2, "value")
    kept = op.first.facts & ~(v.SOFTMAX | v.SIGMOID)
    if filled is None:
        return kept
    if filled.has(v.INF):
        return kept | v.NEGINF if filled.has(v.NEGATIVE) else kept
    if filled.has(v.LOWEST):
        return kept | v.LOWEST
    if filled.number is not None and filled.number > 0:
        return (kept | v.SAFE) & ~(v.ZERO | v.COUNT | v.NORM | v.STD | v.PROB)
    return kept


def _where(op: Operation) -> int:
    a, b = op.value(1, "input", "self"), op.value(2, "other")
    if a is None or b is None:
        return 0
    either = a.facts | b.facts
    if a.has(v.INF) or b.has(v.INF):
        return either & ~(v.INF | v.PY) | v.NEGINF
    if any((x.number is not None and x.number > 0) or x.has(v.SAFE) for x in (a, b)):
        return (either | v.SAFE) & ~(v.PY | v.ZERO | v.PROB)
    return a.facts & b.facts | (either & v.GUARDS & ~v.PY)


def _maximum(op: Operation) -> int:
    if len(op.args) < 2 or (op.name != "maximum" and op.args[1].number is not None):
        return (op.first.facts & ~v.UNIT) | v.MAXIMUM
    for node, value in zip(op.nodes[:2], op.args[:2]):
        if is_small(node, value) or value.has(v.SAFE | v.FIXED):
            return v.SAFE | ((op.args[0].facts | op.args[1].facts) & (v.PY | v.NOGRAD))
    if op.args[1].has(v.PY):
        return (op.first.facts & ~v.UNIT) | v.MAXIMUM
    return (op.first.facts & op.args[1].facts) | v.MAXIMUM


def _norm(op: Operation) -> int:
    return v.NORM | v.NONNEG | v.ZERO | (op.first.facts & (v.DIFFERENCE | v.RELU))


def _unit(op: Operation) -> int:
    return v.UNIT | v.BOUNDED


def _matmul(op: Operation) -> int:
    if len(op.args) > 1 and op.args[0].has(v.UNIT) and op.args[1].has(v.UNIT):
        return v.COS
    return v.UNBOUNDED


def _to(op: Operation) -> int:
    words = " ".join(ast.unparse(n) for n in (*op.nodes[1:], *op.keywords.values()))
    f = op.first.facts
    if "bfloat16" in words:
        return f & ~(v.HALF | v.WIDE) | v.BF16
    if "float16" in words or "half" in words:
        return f & ~(v.BF16 | v.WIDE) | v.HALF
    if any(word in words for word in _WIDE_DTYPES):
        return f & ~(v.HALF | v.BF16) | v.WIDE
    if "long" in words or "int" in words or "bool" in words:
        return f | v.NOGRAD
    return f


def _constant(facts: int) -> Callable[[Operation], int]:
    return lambda op: facts


def _plus(added: int, removed: int = 0) -> Callable[[Operation], int]:
    return lambda op: op.first.facts & ~removed | added


def _negative(op: Operation) -> int:
    f = op.first.facts
    if f & v.INF:
        return f | v.NEGATIVE
    if f & v.NONNEG:
        return v.NEGATIVE | v.BOUNDED | (f & v.PY)
    return f & (v.PY | v.UNBOUNDED | v.LOGVAR | v.NAMED | v.COS | v.NP)


_RULES: dict[str, Callable[[Operation], int]] = {
    "sum": _sum,
    "nansum": _sum,
    "segment_sum": _sum,
    "cumsum": _sum,
    "mean": _mean,
    "nanmean": _mean,
    "clamp": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _plus(v.BOUNDED, v.UNBOUNDED),
    "add": arithmetic.add,
    "sub": arithmetic.sub,
    "mul": arithmetic.mul,
    "div": arithmetic.div,
    "pow": arithmetic.power,
    "square": lambda op: arithmetic.squared(op.first),
    "sqrt": arithmetic.sqrt,
    "exp": arithmetic.exp,
    "softmax": _softmax,
    "gumbel_softmax": _constant(v.PROB | v.NONNEG | v.BOUNDED),
    "sigmoid": _constant(v.PROB | v.NONNEG | v.SIGMOID | v.BOUNDED),
    "tanh": _constant(v.BOUNDED | v.TANH),
    "log": _log,
    "log_softmax": _constant(v.LOGPROB | v.BOUNDED | v.NEGATIVE),
    "logsigmoid": _constant(v.LOGPROB | v.BOUNDED | v.NEGATIVE),
    "log_prob": _constant(v.LOGPROB),
    "prod": _plus(0, v.SAFE),
    "cumprod": _plus(0, v.SAFE),
    "relu": _constant(v.NONNEG | v.RELU | v.ZERO),
    "abs": lambda op: v.NONNEG | v.ABS | v.ZERO | (op.first.facts & v.DIFFERENCE),
    "softplus": _constant(v.NONNEG),
    "norm": _norm,
    "std": _constant(v.STD | v.NONNEG | v.ZERO),
    "var": _constant(v.STD | v.NONNEG | v.ZERO),
    "normalize": _unit,
    "cosine_similarity": _constant(v.COS | v.BOUNDED),
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "dot": _matmul,
    "inner": _matmul,
    "trace": _constant(v.TRACE),
    "masked_fill": _masked_fill,
    "where": _where,
    "max": _maximum,
    "amax": _maximum,
    "maximum": _maximum,
    "min": _plus(0, v.UNIT),
    "amin": _plus(0, v.UNIT),
    "minimum": _constant(v.BOUNDED),
    "to": _to,
    "type": _to,
    "float": _plus(v.WIDE, v.HALF | v.BF16),
    "double": _plus(v.WIDE, v.HALF | v.BF16),
    "half": _plus(v.HALF, v.WIDE | v.BF16),
    "bfloat16": _plus(v.BF16, v.WIDE | v.HALF),
    "detach": _plus(v.NOGRAD),
    "item": _constant(v.PY),
    "tolist": _constant(v.PY),
    "numpy": _constant(v.NP),
    "size": _constant(v.PY),
    "numel": _constant(v.PY),
    "dim": _constant(v.PY),
    "long": _plus(v.NOGRAD),
    "int": _plus(v.NOGRAD),
    "neg": _negative,
    "bincount": _constant(v.COUNT | v.NONNEG | v.ZERO | v.NOGRAD),
    "count_nonzero": _constant(v.COUNT | v.NONNEG | v.ZERO | v.NOGRAD),
    "degree": _constant(v.COUNT | v.NONNEG | v.ZERO | v.NOGRAD),
    "cos": _constant(v.BOUNDED),
    "sin": _constant(v.BOUNDED),
    "cdist": _constant(v.NONNEG | v.ZERO),
}
