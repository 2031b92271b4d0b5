"""Lines of a data pipeline that divide, take a logarithm, a root or a power: tensors, arrays and plain numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .choice import Candidate
from .edits import Edit, Remedy, apply
from .floors import divisor_of
from .matching import name_of
from .schedules import argument_of
from .source import Source

__all__ = ["pipeline_candidates"]

_FLOORS = ("1e-8", "1e-3")
"""The second where what is divided by the first is far from the usual."""
_Part = tuple[ast.expr, str | None, str | None, str, str]


def pipeline_candidates(source: Source, line: int) -> list[Candidate]:
    """Changes of a line that made a sample bad, the likeliest first.

    >>> s = Source("def f(wav):\\n    return wav / wav.abs().max()\\n")
    >>> [c.text.splitlines()[1].strip() for c in pipeline_candidates(s, 2)][0]
    'return wav / wav.abs().max().clamp(min=1e-8)'
    """
    statement = source.statement_at(line)
    if statement is None or isinstance(getattr(statement, "body", None), list):
        return []
    found: list[Candidate] = []
    for node in ast.walk(statement):
        for part, low, high, title, why in _parts(node):
            if isinstance(part, ast.Constant):
                continue
            for new in _limited(source, part, low, high):
                edit = Edit(*source.span(part), new)
                made = Remedy(name="guard_pipeline", title=title, why=why,
                              line=getattr(node, "lineno", line), edits=(edit,))  # fmt: skip
                text, done = apply(source.text, [made])
                found.append(Candidate(done, text))
    return found


def _parts(node: ast.AST) -> Iterator[_Part]:
    """What has to stay within limits: the part, the lower and the upper one, in words, and why."""
    divisor = divisor_of(node)
    if divisor is not None:
        for floor in _FLOORS:
            title, why = f"give the divisor a floor: {floor}", "a larger divisor stays as it is"
            yield divisor, floor, None, title, why
    if (log := argument_of(node, "log", "log2", "log10")) is not None:
        why = "the logarithm of 0 is infinite"
        yield log, _FLOORS[0], None, f"give the logarithm's argument a floor: {_FLOORS[0]}", why
    if (root := argument_of(node, "sqrt")) is not None:
        why = "by rounding a difference of squares can be below 0, which has no root"
        yield root, "0.0", None, "keep the root's argument at 0 or above", why
    base = node.left if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) else None
    base = base if base is not None else argument_of(node, "pow", "power", "float_power")
    if base is not None:
        why = "0 to a negative power is infinite, and a negative number has no root"
        yield base, _FLOORS[0], None, f"give the power's base a floor: {_FLOORS[0]}", why
    if (arc := argument_of(node, "acos", "asin", "arccos", "arcsin")) is not None:
        yield arc, "-1.0", "1.0", "keep the argument within -1 and 1", "beyond there is no angle"
    if (exponent := argument_of(node, "exp", "expm1")) is not None:
        yield exponent, None, "20.0", "bound what goes into the exponential", "exp(89) is infinite"


def _limited(source: Source, part: ast.expr, low: str | None, high: str | None) -> Iterator[str]:
    """As a method of a tensor, as a function of NumPy's, as one of plain numbers."""
    text = source.text_of(part)
    is_atom = isinstance(part, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    given = ", ".join(
        f"{key}={limit}" for key, limit in (("min", low), ("max", high)) if limit is not None
    )
    yield f"{text if is_atom else f'({text})'}.clamp({given})"
    numpy = name_of(source, "numpy")
    for maximum, minimum in ((f"{numpy}.maximum", f"{numpy}.minimum"), ("max", "min")):
        if maximum.startswith("None"):
            continue
        new = text if low is None else f"{maximum}({text}, {low})"
        yield new if high is None else f"{minimum}({new}, {high})"
