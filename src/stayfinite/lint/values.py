"""Facts about a value as bits, and how two sets of facts merge."""

from __future__ import annotations

import ast

__all__ = ["GUARDS", "MAY", "UNKNOWN", "Value", "join"]

_BITS = iter(range(64))


def _fact() -> int:
    return 1 << next(_BITS)


PROB = _fact()
"""Between 0 and 1, and exactly 0 if it saturates or underflows."""
SOFTMAX = _fact()
SIGMOID = _fact()
NONNEG = _fact()
ZERO = _fact()
"""Exactly 0 for a plausible input."""
SQUARE = _fact()
SUMSQ = _fact()
COUNT = _fact()
NORM = _fact()
STD = _fact()
ABS = _fact()
RELU = _fact()
UNIT = _fact()
"""A vector of length 1."""
COS = _fact()
EXP = _fact()
SUMEXP = _fact()
MAXIMUM = _fact()
BOUNDED = _fact()
"""Bounded from above, so that its exponential does not overflow."""
NEGINF = _fact()
"""Some entries are -inf on purpose."""
MASK = _fact()
SELECTED = _fact()
"""Selected by a mask, so that it may be empty."""
PY = _fact()
"""A Python number."""
NP = _fact()
NOGRAD = _fact()
HALF = _fact()
BF16 = _fact()
WIDE = _fact()
"""Known to be float32 or wider."""
SAFE = _fact()
"""Kept from 0 by a clamp, an epsilon or a name that says so."""
MEANSQ = _fact()
SQMEAN = _fact()
MOMENT = _fact()
"""E[x^2] - E[x]^2: below 0 by rounding."""
LOGVAR = _fact()
LOGPROB = _fact()
LOGRATIO = _fact()
ODDS = _fact()
TANH = _fact()
NEGATIVE = _fact()
UNBOUNDED = _fact()
"""The output of a linear layer or a matrix product, of any magnitude."""
TRACE = _fact()
PROBSUM = _fact()
NAMED = _fact()
"""Known by its name only."""
LOCAL = _fact()
"""Known by the name of a variable that unknown code has assigned."""
INF = _fact()
NAN = _fact()
FIXED = _fact()
"""Independent of data: made of constants, ranges and sizes."""
MEAN = _fact()
TINY = _fact()
"""An epsilon that half precision rounds to 0."""
DIFFERENCE = _fact()
"""A difference of two similar things, which is 0 if they are equal."""
SUM = _fact()
TANHSQ = _fact()
ARC = _fact()
"""Clamped at exactly -1 and 1, where the inverse functions have no derivative."""
RANGE = _fact()
"""The largest minus the smallest."""
SAVED = _fact()
"""The backward uses the result itself."""
LOWEST = _fact()
"""Filled with the lowest number of a dtype."""

GUARDS = SAFE | BOUNDED | NOGRAD | PY | NP | WIDE
"""Facts that make a value harmless, even if only one branch has them."""
MAY = NEGINF | HALF | BF16
"""Facts that matter even if only one branch has them."""


class Value:
    """The facts of one value, the expression that made it, and its parts."""

    __slots__ = ("calls", "facts", "items", "node", "number")

    def __init__(
        self,
        facts: int = 0,
        node: ast.expr | None = None,
        items: tuple[Value, ...] = (),
        number: float | None = None,
        calls: str | None = None,
    ) -> None:
        self.facts = facts
        self.node = node
        self.items = items
        self.number = number
        self.calls = calls
        """For a layer or a function in a variable: the operation of calling it."""

    def has(self, facts: int) -> bool:
        """Whether one of these facts is known.

        >>> Value(PROB | NONNEG).has(PROB | SAFE), Value().has(PROB)
        (True, False)
        """
        return bool(self.facts & facts)

    def with_facts(self, facts: int) -> Value:
        return Value(facts, self.node, self.items, self.number, self.calls)


UNKNOWN = Value()


def join(a: Value, b: Value) -> Value:
    """Merge two branches: hazards of both, guards of either."""
    if a is b:
        return a
    either = a.facts | b.facts
    facts = (a.facts & b.facts) | (either & (GUARDS | MAY))
    items: tuple[Value, ...] = ()
    if len(a.items) == len(b.items):
        items = tuple(map(join, a.items, b.items))
    number = a.number if a.number == b.number else None
    node = a.node if a.node is b.node else None
    return Value(facts, node, items, number, a.calls if a.calls == b.calls else None)
