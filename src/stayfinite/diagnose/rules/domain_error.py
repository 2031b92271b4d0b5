"""A function outside of its domain."""

from __future__ import annotations

from ...records import Fix, TensorStats
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, line_fix, operator, safe_fixes, span

_BELOW_ZERO = (
    "log",
    "log2",
    "log10",
    "sqrt",
    "rsqrt",
    "xlogy",
    "special_entr",
)
_BELOW_MINUS_ONE = ("log1p", "special_xlog1py")
_GAMMAS = ("lgamma", "digamma", "polygamma", "mvlgamma")
_PLAIN = ("add", "sub", "mul", "sum", "mean", "mm", "bmm", "addmm", "baddbmm", "matmul", "convolution",
          "cumsum", "var", "std", "var_mean", "std_mean", "cat", "index", "clone", "copy", "where",
          "_to_copy", "index_put", "scatter", "gather", "empty", "empty_like")  # fmt: skip
"""Operators that are defined everywhere, so that a NaN has other causes."""
_ORDINARY = 1e10
_WITHIN_ONE = ("acos", "asin", "atanh", "erfinv", "arccos", "arcsin", "arctanh")


@rule("domain_error")
def outside(e: Evidence) -> Finding | None:
    if e.birth is None or not (e.made_nan or e.kernel in (*_WITHIN_ONE, *_GAMMAS)):
        return None
    x = e.at_bad("other") if e.kernel in ("xlogy", "special_xlog1py") else e.at_bad("self", "input")
    if x is None or x.min is None or x.max is None:
        return None
    allowed = _allowed(e, x)
    if allowed is None:
        return None
    confidence = 0.9
    if e.is_backward:
        confidence = 0.5
    if e.has_diverged >= 0.9:
        confidence = 0.6
    if e.is_in_library_optimizer:
        return _in_the_optimizer(e, x, confidence)
    return Finding(
        confidence=confidence,
        sentence=f"{operator(e)} {here(e)} was given {span(x)} where {allowed} is allowed.",
        facts=_cancellation(e),
        fixes=_fixes(e),
    )


def _fixes(e: Evidence) -> tuple[Fix, ...]:
    op = "pow" if e.kernel.startswith("pow") else e.kernel
    why = "it gives the value at the edge of the domain, and a zero gradient beyond it"
    return safe_fixes(e, op, why) or (
        line_fix(
            e,
            f"keep the argument of {op} {here(e)} inside its domain (clamp it, or parametrize it so "
            "that it cannot leave: softplus, relu, sigmoid)",
            "rounding and unusual data reach the edge sooner or later",
        ),
    )


def _in_the_optimizer(e: Evidence, x: TensorStats, confidence: float) -> Finding:
    """There is no line of the user to change, only settings of the optimizer."""
    name = e.optimizer.get("type", "the optimizer")
    if e.optimizer.get("centered") == "True":
        fix = Fix(
            title=f"{name}: set centered=False",
            why="the centered form subtracts the squared mean of the gradient from the mean of its "
            "square; for a gradient that hardly changes the two are equal, and rounding decides the "
            "sign. A larger eps does not help: it is added behind the root",
            before="centered=True",
            after="centered=False",
        )
    else:
        fix = Fix(
            title=f"{name}: a smaller learning rate, float32 parameters, or another optimizer",
            why="its own update left the domain on finite gradients; the script has no line to change",
        )
    return Finding(
        confidence=confidence,
        sentence=f"{name} takes the {e.kernel} of {span(x)} in its own update; the gradients are finite.",
        facts=_cancellation(e),
        fixes=(fix,),
    )


@rule("domain_error")
def undefined_for_these_values(e: Evidence) -> Finding | None:
    """Any other operator that makes a NaN from ordinary numbers, with its arguments."""
    if e.birth is None or e.is_backward or e.is_in_optimizer or not e.made_nan:
        return None
    found = [o.stats_at_bad or o.stats for o in e.birth.inputs]
    floats = [s for s in found if s is not None and "float" in s.dtype and s.num_elements]
    if not floats or not e.has_finite_inputs or e.largest_input > _ORDINARY:
        return None
    if e.kernel in _PLAIN:
        return None
    ranges = ", ".join(span(s) for s in floats[:3])
    return Finding(
        confidence=0.3,
        sentence=f"{operator(e)} {here(e)} was given finite values ({ranges}) and gave NaN: it is not "
        "defined for some of them.",
        fixes=(
            line_fix(
                e,
                f"look up where {e.kernel.lstrip('_')} is defined, and keep what goes in there inside of "
                "it: away from zero for what divides or takes a root, not empty for what averages",
                "with this line kept finite the step can be tried",
            ),
        ),
    )


@rule("domain_error")
def negative_determinant(e: Evidence) -> Finding | None:
    """`logdet` returns NaN if the determinant is negative."""
    is_written = e.kernel in ("scalar_tensor", "full", "where") and e.made_nan
    source = e.location.source or ""
    if not is_written or "logdet" not in source or "slogdet" in source:
        return None
    return Finding(
        confidence=0.85,
        sentence=f"logdet {here(e)} was given a matrix whose determinant is negative, and gives NaN for it.",
        fixes=(
            line_fix(
                e,
                f"slogdet(...)[1] instead of logdet {here(e)}",
                "the logarithm of the determinant's size is what a change of volume needs",
            ),
        ),
    )


def _allowed(e: Evidence, x: TensorStats) -> str | None:
    assert x.min is not None and x.max is not None
    if e.kernel in _GAMMAS:
        return "more than 0" if x.min <= 0 else None
    if e.kernel in _BELOW_ZERO:
        return "0 and above" if x.min < 0 else None
    if e.kernel in _BELOW_MINUS_ONE:
        return "-1 and above" if x.min < -1 else None
    if e.kernel in _WITHIN_ONE:
        is_open = e.kernel in ("atanh", "erfinv", "arctanh")
        outside = max(abs(x.min), abs(x.max))
        return "-1 to 1" if outside > 1 or (is_open and outside == 1) else None
    if e.kernel in ("acosh", "arccosh"):
        return "1 and above" if x.min < 1 else None
    if e.kernel == "logit":
        return "0 to 1" if x.min < 0 or x.max > 1 else None
    if e.kernel.startswith("pow"):
        return "0 and above (the exponent is fractional)" if x.min < 0 else None
    return None


def _cancellation(e: Evidence) -> tuple[str, ...]:
    x = e.at_bad("self")
    if e.kernel in ("sqrt", "log") and x is not None and x.max is not None and -1e-2 < x.max < 0:
        return (
            "the argument is only just negative: a difference that cancels, like E[x^2] - E[x]^2",
        )
    return ()
