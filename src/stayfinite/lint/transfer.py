"""What an operation makes of the facts of its operands."""

from __future__ import annotations

import ast
from collections.abc import Callable

from . import values as v
from .operation import Operation, is_decay, is_same, is_small
from .values import Value

__all__ = ["result"]

_SAME = frozenset(
    """view reshape squeeze unsqueeze flatten unflatten transpose permute expand expand_as repeat
    repeat_interleave contiguous clone cuda cpu gather index_select narrow select chunk split unbind
    movedim roll flip tile broadcast_to view_as type_as t T mT diagonal diag masked_select take
    take_along_dim dropout pin_memory requires_grad_ rearrange tril triu sort topk cat concat stack
    vstack hstack split_with_sizes swapdims ravel detach_ squeeze_ unsqueeze_ as_tensor
    pad one_pass checkpoint gather_nd all_gather all_reduce cummax cummin median quantile avg_pool2d
    adaptive_avg_pool2d interpolate nan_to_num""".split()
)
_WIDE_DTYPES = ("float32", "float64", "double", "float")
_LAYERS = frozenset(
    "linear conv1d conv2d conv3d matmul mm bmm addmm baddbmm einsum embedding".split()
)
_FIXED = frozenset(
    "arange linspace logspace ones zeros full eye ones_like zeros_like full_like randperm tensor "
    "rand randn randint rand_like randn_like tril_indices hann_window hamming_window".split()
)
_ARITHMETIC = ("add", "sub", "mul", "div")
_BOOLEAN = frozenset(
    "isnan isinf isfinite eq ne lt le gt ge bool logical_and logical_or logical_not isin any all "
    "one_hot bernoulli".split()
)


def result(op: Operation) -> Value:
    """The value that an operation gives, as far as it is known."""
    name = op.name
    if name in _SAME:
        return _same(op)
    rule = _RULES.get(name)
    if rule is not None:
        facts = rule(op)
    elif name in _LAYERS:
        facts = v.UNBOUNDED
    elif name in _FIXED:
        facts = v.NOGRAD | v.FIXED
    elif name in _BOOLEAN:
        facts = v.MASK | v.NOGRAD
    else:
        facts = 0
    return Value(facts | _carried(op), op.node)


def _carried(op: Operation) -> int:
    """Facts of a dtype and of no gradient go on through any operation on all of whose operands they hold."""
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
        return Value(facts, op.node)
    facts = op.first.facts
    if op.name == "masked_select":
        facts |= v.SELECTED
    return Value(facts, op.node, calls=op.first.calls)


def _sum(op: Operation) -> int:
    f = op.first.facts
    out = v.SUM | (f & (v.NONNEG | v.SAFE | v.ZERO | v.SELECTED | v.NP | v.DIFFERENCE))
    if f & v.SQUARE:
        out |= v.SUMSQ | v.NONNEG | v.ZERO | (f & v.NAMED)
    if f & v.MASK:
        out |= v.COUNT | v.NONNEG | v.ZERO | (f & v.NAMED)
    if f & v.EXP:
        out |= v.SUMEXP | v.NONNEG | (f & v.BOUNDED)
    if f & v.PROB:
        out |= v.PROBSUM | v.NONNEG
    if f & v.COUNT:
        out |= v.COUNT | v.ZERO | v.NONNEG | (f & v.NAMED)
    if f & v.UNIT:
        out |= v.COS
    return out & ~(v.SAFE if f & (v.MASK | v.SQUARE) else 0)


def _mean(op: Operation) -> int:
    f = op.first.facts
    out = f & (v.NONNEG | v.SAFE | v.ZERO | v.PROB | v.EXP | v.BOUNDED | v.ABS | v.RELU)
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
        f = (f | v.BOUNDED) & ~(v.COS | v.UNBOUNDED)
    if low is None or _is_none(low):
        return op.first.facts | (f & (v.BOUNDED | v.ARC))
    number = op.number(1, "min", "min_val", "min_value")
    if number is not None and number == 0:
        f |= v.NONNEG | v.ZERO | v.RELU
        return f if not op.first.has(v.PROB) else f | v.PROB
    if number is not None and number < 0:
        return f & ~v.COS
    return (f | v.SAFE) & ~(v.PROB | v.COS | v.MOMENT | v.ZERO | v.RELU)


def _clamp_min(op: Operation) -> int:
    number = op.number(1, "min")
    f = op.first.facts & ~(v.SOFTMAX | v.SIGMOID)
    if number == 0:
        return f | v.NONNEG | v.ZERO | v.RELU
    return (f | v.SAFE) & ~(v.PROB | v.ZERO | v.MOMENT | v.RELU)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _add(op: Operation) -> int:
    if len(op.args) < 2:
        return 0
    a, b = op.args[:2]
    if a.has(v.PY) and b.has(v.PY):
        return v.PY
    for this, other, node in ((a, b, op.nodes[1]), (b, a, op.nodes[0])):
        if is_small(node, other) or other.has(v.SAFE) and other.has(v.PY):
            kept = this.facts & ~(v.SOFTMAX | v.SIGMOID | v.ZERO | v.PROB | v.COUNT | v.MOMENT)
            return kept | v.SAFE | (v.TINY if other.facts & v.TINY else 0)
    both, either = a.facts & b.facts, a.facts | b.facts
    out = both & (v.NONNEG | v.ZERO | v.BOUNDED | v.NEGATIVE | v.COUNT)
    if both & v.SQUARE:
        is_known = either & (v.DIFFERENCE | v.UNBOUNDED)
        out |= v.SUMSQ | v.SQUARE | (0 if is_known else v.NAMED)
    if both & v.SUMSQ:
        out |= v.SUMSQ
    if both & v.EXP:
        out |= v.SUMEXP
    if either & v.SAFE and both & v.NONNEG:
        out |= v.SAFE
    if either & v.NEGINF:
        out |= v.NEGINF
    if (a.number is not None or b.number is not None) and either & v.LOGVAR:
        out |= either & v.LOGVAR
    return out


def _sub(op: Operation) -> int:
    if len(op.args) < 2:
        return 0
    a, b = op.args[:2]
    if a.has(v.PY) and b.has(v.PY):
        return v.PY
    if a.number == 1 and b.has(v.PROB):
        return (b.facts & (v.PROB | v.NONNEG | v.SIGMOID | v.SAFE | v.NAMED)) | v.ODDS
    if a.number == 1 and b.has(v.TANHSQ):
        return v.PROB | v.NONNEG | v.ODDS
    if b.has(v.MAXIMUM):
        return v.BOUNDED
    if a.has(v.MEANSQ) and b.has(v.SQMEAN):
        return v.MOMENT | v.ZERO
    if b.number is not None:
        return a.facts & (v.TRACE | v.UNBOUNDED | v.LOGVAR | v.NAMED)
    out = (a.facts & v.NEGINF) | (0 if b.has(v.PY | v.MEAN) or a.has(v.PY) else v.DIFFERENCE)
    if a.has(v.LOGPROB) and b.has(v.LOGPROB):
        out |= v.LOGRATIO
    if a.has(v.NEGATIVE | v.BOUNDED) and b.has(v.NONNEG):
        out |= v.BOUNDED
    return out | ((a.facts | b.facts) & v.UNBOUNDED)


def _mul(op: Operation) -> int:
    if len(op.args) < 2:
        return 0
    a, b = op.args[:2]
    both, either = a.facts & b.facts, a.facts | b.facts
    if both & v.PY:
        return v.PY
    if is_same(op.nodes[0], op.nodes[1]):
        return _squared(a)
    for this, other in ((a, b), (b, a)):
        if other.has(v.PY):
            return _scaled(this, other)
        if other.has(v.MASK) and not this.has(v.MASK):
            return this.facts & ~(v.SAFE | v.SOFTMAX | v.SIGMOID) | v.ZERO
    out = both & (v.NONNEG | v.PROB | v.MASK | v.UNIT)
    if both & v.NONNEG:
        out |= either & (v.ZERO | v.NORM | v.SUMSQ)
    if both & v.SAFE:
        out |= v.SAFE
    return out | (either & v.UNBOUNDED)


def _scaled(this: Value, by: Value) -> int:
    number = by.number
    if number is not None and number < 0:
        if this.has(v.NONNEG):
            return v.BOUNDED | v.NEGATIVE
        return this.facts & (v.LOGVAR | v.NAMED | v.UNBOUNDED | v.LOGPROB)
    kept = this.facts & ~(v.SOFTMAX | v.SIGMOID | v.UNIT | v.COS)
    return kept


def _div(op: Operation) -> int:
    if len(op.args) < 2:
        return 0
    a, b = op.args[:2]
    if a.has(v.PY) and b.has(v.PY):
        return v.PY
    if b.has(v.NORM) and not b.has(v.SUMSQ):
        return v.UNIT if not a.has(v.UNIT) else v.COS
    if b.has(v.PY):
        kept = a.facts & ~(v.SOFTMAX | v.SIGMOID | v.UNIT)
        return kept | (v.COS if a.has(v.TRACE) else 0)
    if a.has(v.SUMSQ) and b.has(v.COUNT):
        return v.SUMSQ | v.NONNEG | v.ZERO
    return a.facts & b.facts & v.NONNEG | (a.facts & (v.NONNEG | v.ZERO) if b.has(v.NONNEG) else 0)


def _pow(op: Operation) -> int:
    number = op.number(1, "exponent")
    base = op.first
    if base.has(v.PY) and len(op.args) > 1 and op.args[1].has(v.PY):
        return v.PY
    if number is not None and number > 0 and number % 2 == 0:
        return _squared(base)
    if number == 0.5:
        return _sqrt(op)
    return base.facts & (v.NONNEG | v.ZERO | v.PROB | v.SAFE)


def _squared(base: Value) -> int:
    out = v.NONNEG | v.SQUARE | v.ZERO | (base.facts & (v.DIFFERENCE | v.UNBOUNDED))
    if base.has(v.TANH):
        out |= v.TANHSQ
    return out | (v.SQMEAN if base.has(v.MEAN) else 0)


def _sqrt(op: Operation) -> int:
    f = op.first.facts
    out = v.NONNEG | (f & (v.ZERO | v.SAFE | v.PROB | v.DIFFERENCE | v.NAMED))
    if f & v.SUMSQ and not f & v.MEANSQ:
        out |= v.NORM
    return out


def _exp(op: Operation) -> int:
    f = op.first.facts
    out = v.NONNEG | v.EXP | (f & v.BOUNDED)
    if op.nodes and is_decay(op.nodes[0]):
        out |= v.BOUNDED
    return out | (v.PROB if f & (v.LOGPROB | v.NEGATIVE) and not f & v.LOGRATIO else 0)


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
    if any(x.number is not None and x.number > 0 or x.has(v.SAFE) for x in (a, b)):
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
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "square": lambda op: _squared(op.first),
    "sqrt": _sqrt,
    "exp": _exp,
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
    "abs": _constant(v.NONNEG | v.ABS | v.ZERO),
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
    "empty": _constant(v.EMPTY | v.FIXED),
    "empty_like": _constant(v.EMPTY),
    "new_empty": _constant(v.EMPTY),
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
