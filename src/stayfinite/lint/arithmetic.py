"""Derives facts about the results of arithmetic from facts about the operands."""

from __future__ import annotations

from . import values as v
from .operation import Operation, is_decay, is_same, is_small
from .values import Value

__all__ = ["add", "div", "exp", "mul", "power", "sqrt", "squared", "sub"]


def add(op: Operation) -> int:
    if len(op.args) < 2:
        return 0
    a, b = op.args[:2]
    if a.has(v.PY) and b.has(v.PY):
        return v.PY
    for this, other, node in ((a, b, op.nodes[1]), (b, a, op.nodes[0])):
        if is_small(node, other) or (other.has(v.SAFE) and other.has(v.PY)):
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


def sub(op: Operation) -> int:
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
    if a.has(v.MAXIMUM):
        return v.RANGE | v.NONNEG
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


def mul(op: Operation) -> int:
    if len(op.args) < 2:
        return 0
    a, b = op.args[:2]
    both, either = a.facts & b.facts, a.facts | b.facts
    if both & v.PY:
        return v.PY
    if is_same(op.nodes[0], op.nodes[1]):
        return squared(a)
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


def div(op: Operation) -> int:
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
    kept = a.facts & (v.UNBOUNDED | v.LOGRATIO)
    if a.has(v.COS):
        kept |= v.BOUNDED  # a similarity divided by a temperature
    return kept | (a.facts & (v.NONNEG | v.ZERO) if b.has(v.NONNEG) else 0)


def power(op: Operation) -> int:
    number = op.number(1, "exponent")
    base = op.first
    if base.has(v.PY) and len(op.args) > 1 and op.args[1].has(v.PY):
        return v.PY
    if number is not None and number > 0 and number % 2 == 0:
        return squared(base)
    if number == 0.5:
        return sqrt(op)
    return base.facts & (v.NONNEG | v.ZERO | v.PROB | v.SAFE)


def squared(base: Value) -> int:
    out = v.NONNEG | v.SQUARE | v.ZERO | (base.facts & (v.DIFFERENCE | v.UNBOUNDED))
    if base.has(v.TANH):
        out |= v.TANHSQ
    return out | (v.SQMEAN if base.has(v.MEAN) else 0)


def sqrt(op: Operation) -> int:
    f = op.first.facts
    out = v.NONNEG | (f & (v.ZERO | v.SAFE | v.PROB | v.DIFFERENCE | v.NAMED))
    if f & v.SUMSQ and not f & v.MEANSQ:
        out |= v.NORM
    return out


def exp(op: Operation) -> int:
    f = op.first.facts
    out = v.NONNEG | v.EXP | (f & v.BOUNDED)
    if op.nodes and is_decay(op.nodes[0]):
        out |= v.BOUNDED
    return out | (v.PROB if f & (v.LOGPROB | v.NEGATIVE) and not f & v.LOGRATIO else 0)
