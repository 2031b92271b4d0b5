"""Phrases shared by the rules."""

from __future__ import annotations

import os
import re

from ..records import Fix, TensorStats
from .evidence import Evidence

__all__ = [
    "count",
    "here",
    "holds",
    "is_log_of_probability",
    "line_fix",
    "log_fixes",
    "num",
    "operator",
    "part",
    "safe_fixes",
    "span",
    "written_in_source",
]

SAFE = {
    "log": "safe_log",
    "sqrt": "safe_sqrt",
    "exp": "safe_exp",
    "div": "safe_div",
    "pow": "safe_pow",
    "acos": "safe_acos",
    "asin": "safe_asin",
    "atanh": "safe_atanh",
    "norm": "safe_norm",
    "std": "safe_std",
    "var": "safe_var",
}
"""Operators with a replacement in `stayfinite.numerics`."""
_ALIASES = {
    "arccos": "acos",
    "arcsin": "asin",
    "arctanh": "atanh",
    "vector_norm": "norm",
    "divide": "div",
    "true_divide": "div",
}
_LOG_WHY = "the logarithm of a tiny probability is an ordinary number; its detour over the probability is not"


def num(value: float | None) -> str:
    """A number in short.

    >>> num(3.0), num(0.00012345), num(1.5e38), num(None)
    ('3', '0.0001234', '1.5e+38', '?')
    """
    if value is None:
        return "?"
    return f"{value:.4g}"


def count(number: float, noun: str) -> str:
    """A count with its noun.

    >>> count(1, "row"), count(3, "row"), count(2, "entry")
    ('1 row', '3 rows', '2 entries')
    """
    whole = int(number)
    if whole == 1:
        return f"1 {noun}"
    return f"{whole} {noun[:-1]}ies" if noun.endswith("y") else f"{whole} {noun}s"


def span(stats: TensorStats | None) -> str:
    """The range of a tensor's finite values."""
    if stats is None or stats.min is None:
        return "nothing finite"
    if stats.min == stats.max:
        return num(stats.min)
    return f"{num(stats.min)} to {num(stats.max)}"


def part(label: str | None) -> str:
    """The short name of a part of the batch.

    >>> part("batch batch[1]"), part("batch x"), part("parameter w")
    ('batch[1]', 'batch x', 'parameter w')
    """
    return (label or "the batch").replace("batch batch", "batch", 1)


def here(evidence: Evidence) -> str:
    """The line, and the module if there is one."""
    location = evidence.location
    if location.file is None:
        return f"in module {location.module}" if location.module else "there"
    place = f"{os.path.basename(location.file)}:{location.line}"
    return f"at {place}" + (f" (module {location.module})" if location.module else "")


def operator(evidence: Evidence) -> str:
    """The operator of the birth; in a custom backward not the node."""
    birth = evidence.birth
    if birth is None:
        return "it"
    return (birth.kernel if evidence.is_own_backward else birth.op) or birth.op or "it"


_LITERAL = re.compile(r"""(?i)float\(\s*['"]([-+]?(?:nan|inf(?:inity)?))['"]|\.(nan|inf|NaN)\b""")


def written_in_source(evidence: Evidence) -> str:
    """If no operator made the value: whether the line writes it; else ""."""
    location = evidence.location
    found = _LITERAL.search(location.source or "")
    if found is None or evidence.birth is not None or location.op is None:
        return ""
    value = (found[1] or found[2]).lower()
    return (
        f"The script itself writes {value} {here(evidence)}. No operator made it, so there is nothing "
        "to explain but that line: the value reaches the loss or a gradient from there."
    )


def line_fix(
    evidence: Evidence,
    title: str,
    why: str,
    *,
    experiment: str | None = "patched_operator",
) -> Fix:
    """A fix at the line of the birth."""
    location = evidence.location
    return Fix(
        title=title,
        why=why,
        file=location.file,
        line=location.line,
        experiment=experiment,
    )


def holds(source: str | None, op: str) -> bool:
    """Whether this line calls `op`, as a function, a method or an operator.

    >>> holds("y = x ** 1.5", "pow"), holds("loss = grad(u, x)", "pow"), holds("+ torch.log(", "log")
    (True, False, True)
    """
    if not source:
        return False
    names = [op, *(alias for alias, name in _ALIASES.items() if name == op)]
    signs = {"div": r"(?<!/)/(?!/)", "pow": r"\*\*"}
    patterns = [rf"\b{name}\s*\(" for name in names] + ([signs[op]] if op in signs else [])
    return any(re.search(pattern, source) for pattern in patterns)


def is_log_of_probability(source: str | None) -> bool:
    """Whether this line takes the logarithm of a sigmoid or softmax that it computes itself.

    >>> is_log_of_probability("loss = -torch.log(torch.sigmoid(score) + 1e-8).mean()")
    True
    """
    return holds(source, "log") and (holds(source, "sigmoid") or holds(source, "softmax"))


def safe_fixes(evidence: Evidence, op: str, why: str) -> tuple[Fix, ...]:
    """Fixes that replace an operator by its safe form in `stayfinite.numerics`, if the line has it."""
    source = evidence.location.source
    if op not in SAFE or not holds(source, op):
        return ()
    title = f"use stayfinite.numerics.{SAFE[op]} instead of {op} {here(evidence)}"
    return (line_fix(evidence, title, why),)


def log_fixes(evidence: Evidence) -> tuple[Fix, ...]:
    """Fixes that take the logarithm before the probability is rounded, or keep it finite."""
    safe = safe_fixes(
        evidence, "log", "it never goes below the logarithm of the smallest normal number"
    )
    if is_log_of_probability(evidence.location.source):
        title = f"stay in log space {here(evidence)}: the logarithm of a probability in one call"
        return (line_fix(evidence, title, _LOG_WHY), *safe)
    title = (
        f"{'or, ' if safe else ''}if it is a probability, stay in log space: logsigmoid instead of "
        "log(sigmoid), log_softmax instead of log(softmax), logsumexp instead of log(sum(exp)), "
        "stayfinite.numerics.log_mixture or log1mexp"
    )
    return (*safe, line_fix(evidence, title, _LOG_WHY))
