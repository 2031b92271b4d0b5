"""Chooses the changes to try for a failed operator, best first."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from ..parsing import parsed
from .catalogue import find
from .edits import Remedy, apply
from .floors import divisor_of
from .source import Source

__all__ = ["Candidate", "Symptom", "candidates", "is_equivalent", "is_flat", "is_shift", "room_of"]

_HALF = ("float16", "bfloat16")
_JITTER = 0.02
_MOST_SINGLE = 3
"""If a pattern matches up to this many times on a line, each place is also tried alone, after all together."""
_ONE_OF_MANY = ("mean_or_zero", "loss_or_zero", "nan_to_zero")
"""If only one selection is empty, the others on the line should stay unchanged."""
_NORMALIZED = ("normalized_in_log_space", "normalized_in_log_space_without_epsilon")
_IN_FUNCTION = {"log_space", "log_space_without_epsilon", "log_of_share", "logsumexp", "log_cosh", "softmax", "softmax_later",
                "finite_mask", "eps_for_dtype", "with_logits", "float32_function", "float32_body",
                "softplus", "logaddexp", "sigmoid", "tanh", "normalize", "smooth_over_open", "floor_distribution", "floor_distribution_more", "mask_first",
                *_NORMALIZED}  # fmt: skip
"""Patterns to search in the whole function: the failing line may be only a part of them."""

_LOG = ("log_space", "log_space_without_epsilon", "log_of_share", "logsumexp", "log_cosh", "logaddexp", "with_logits",
        "log_of_positive", "log_of_magnitude", "inside_support", "above_support", "floor_log_eps", "floor_log",
        "floor_distribution", "floor_distribution_more")  # fmt: skip
_BY_HAND = ("softplus", "logaddexp", "sigmoid", "tanh")
_EXP = ("bound_log_rate", "bound_log_rate_low", "log_of_share", "logsumexp", "log_cosh", *_BY_HAND, "softmax", "softmax_later", *_NORMALIZED,
        "shift_exp", "shift_exp_all", "bound_exp", "bound_exp_everywhere", "bound_exp_low", "bound_exp_lowest", "bound_exp_high", "bound_exp_both")  # fmt: skip
_DIVISION = ("log_of_share", "sigmoid", "tanh", "softmax", "softmax_later", *_NORMALIZED, "normalize", "floor_norm", "nonzero_divisor",
             "floor_definition", "floor_reciprocal", "floor_distribution", "floor_distribution_more")  # fmt: skip
_BY_OPERATOR: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("log", "log2", "log10"), _LOG),
    **dict.fromkeys(("xlogy", "kl_div"), ("floor_kl_target", *_LOG)),
    "log1p": ("log1p_of_positive", "above_minus_one"),
    "logit": ("logit_eps", "log_space"),
    **dict.fromkeys(("exp", "expm1", "exp2"), _EXP),
    "cosh": ("log_cosh",),
    **dict.fromkeys(("i0", "i1", "special_i0", "special_i1"), ("log_bessel", "bound_exp")),
    **dict.fromkeys(("div", "true_divide", "divide", "reciprocal", "addcdiv", "remainder"), _DIVISION),
    "sqrt": ("floor_root", "floor_root_eps", "norm_as_root"),
    "rsqrt": ("floor_root_eps", "floor_root"),
    "pow": ("floor_power", "floor_power_eps", "floor_root", "norm_as_root"),
    **dict.fromkeys(("norm", "linalg_vector_norm", "vector_norm"), ("norm_as_root",)),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), ("spread_of_one", "std_as_root", "nan_to_zero")),
    **dict.fromkeys(("acosh", "arccosh"), ("acosh_from_one", "above_one")),
    **dict.fromkeys(("lgamma", "digamma", "polygamma"), ("above_support", "floor_log", "floor_distribution")),
    **dict.fromkeys(("linalg_det", "linalg_slogdet", "linalg_inv_ex", "linalg_cholesky_ex", "linalg_solve_ex",
                     "linalg_inv", "linalg_cholesky", "linalg_solve", "inverse", "logdet", "linalg_qr"),
                    ("jitter", "jitter_more")),
    "scalar_tensor": ("log_abs_det",),
    "hypot": ("hypot_as_norm",),
    **dict.fromkeys(("acos", "asin", "arccos", "arcsin"), ("bound_arc",)),
    **dict.fromkeys(("atanh", "arctanh", "erfinv"), ("inside_unit", "inside_both_ends")),
    **dict.fromkeys(("empty", "empty_like", "new_empty", "empty_strided"), ("zeros", "zeroed")),
    "_ctc_loss": ("zero_infinity",),
    **dict.fromkeys(("atan2", "arctan2"), ("atan2_off_origin",)),
    **dict.fromkeys(("linalg_eigh", "linalg_svd", "svd", "linalg_eig"), ("spread_values",)),
}  # fmt: skip
_MASKED = ["finite_mask", "open_rows", "open_padding", "no_weights"]
_EMPTY = ["mean_or_zero", "loss_or_zero", "nan_to_zero"]
_EXPLODING = ("limit_gradient", "limit_gradient_more")
_INFEASIBLE = (
    "smooth_over_open",
    "without_masked",
    "ignore_masked",
    "reduce_finite",
    "floor_log_prob",
)
_WIDER = [
    "float32_operands",
    "float32_line",
    "float32_line_back",
    "float32_block",
    "float32_function",
    "float32_body",
]


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """The properties of the operator that failed."""

    operator: str
    """The operator as written: "log", "sqrt", "div"; for a derivative, its function."""
    dtype: str = ""
    is_masked: bool = False
    """Whether a row is all -inf."""
    is_empty: bool = False
    """Whether it is a reduction over no element."""
    is_count: bool = False
    """Whether the divisor is an integer."""
    can_be_negative: bool = False
    """Whether the divisor is a sum or difference of either sign."""
    is_plain_number: bool = False
    """Whether the divisor is not a tensor."""
    is_exploding: bool = False
    """Whether a product of many derivatives is too large, not only that of this line."""
    is_infeasible: bool = False
    """Whether a masked class has a share of the target."""
    is_discarded: bool = False
    """Whether a mask or `where` discards its result; the backward still goes through it."""
    is_distribution: bool = False
    """Whether the code of a distribution failed, which may be made in another function."""


@dataclass(frozen=True)
class Candidate:
    """Changes that are made together, and the resulting text."""

    remedies: tuple[Remedy, ...]
    text: str


def candidates(source: Source, line: int, symptom: Symptom) -> list[Candidate]:
    """Every change that matches this line or the function around it, the best first."""
    found: list[Candidate] = []
    for name in _ordered(source, line, _names(symptom)):
        remedies = _matches(source, line, name)
        if not remedies and symptom.is_distribution and name.startswith("floor_distribution"):
            remedies = _found(source, ast.walk(source.tree), name)
        if not remedies:
            continue
        singles = [[r] for r in remedies] if 1 < len(remedies) <= _MOST_SINGLE else []
        for chosen in (*singles, remedies) if name in _ONE_OF_MANY else (remedies, *singles):
            text, done = apply(source.text, chosen)
            if text != source.text and _parses(text) and all(text != c.text for c in found):
                found.append(Candidate(done, text))
    return found


def _ordered(source: Source, line: int, names: list[str]) -> list[str]:
    """Add the floor where the value is computed, if it is a divisor and a factor."""
    if "floor_definition" not in names or not _is_multiplied_again(source, line):
        return names
    rest = [n for n in names if n != "floor_definition"]
    at = min((rest.index(n) for n in ("floor_norm", "nonzero_divisor") if n in rest), default=0)
    return [*rest[:at], "floor_definition", *rest[at:]]


def _is_multiplied_again(source: Source, line: int) -> bool:
    divisors = [divisor_of(n) for n in _nodes(source, line, is_wide=False)]
    names = {d.id for d in divisors if isinstance(d, ast.Name)}
    products = [
        n for n in ast.walk(source.function_at(line))
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)
    ]  # fmt: skip
    return any(
        isinstance(s, ast.Name) and s.id in names for p in products for s in (p.left, p.right)
    )


def _names(symptom: Symptom) -> list[str]:
    if symptom.is_exploding:
        return list(_EXPLODING)
    if symptom.is_infeasible:
        return [*_INFEASIBLE, *_BY_OPERATOR.get(symptom.operator, ())]
    names = list(_BY_OPERATOR.get(symptom.operator, ()))
    if symptom.operator in ("_softmax", "_log_softmax", "logsumexp") or symptom.is_masked:
        names = _MASKED + names
    if symptom.is_discarded:
        names = ["mask_first", *names]
    if symptom.is_empty:
        names = [*names, *_EMPTY]
    if symptom.is_plain_number:
        names = ["floor_number", *names]
    elif symptom.is_count:
        names = ["floor_count", *names]
    elif symptom.can_be_negative:
        names = [n for n in names if n != "floor_norm"]
    if symptom.dtype in _HALF:
        rewrites = [n for n in names if n in _IN_FUNCTION]
        names = [*rewrites, *_WIDER, "eps_for_dtype", *(n for n in names if n not in rewrites)]
    return list(dict.fromkeys(names))


def _matches(source: Source, line: int, name: str) -> list[Remedy]:
    return _found(source, _nodes(source, line, name in _IN_FUNCTION), name)


def _found(source: Source, nodes: Iterable[ast.AST], name: str) -> list[Remedy]:
    found = [find(source, node, name) for node in nodes]
    return list(dict.fromkeys(r for r in found if r is not None))


def _nodes(source: Source, line: int, is_wide: bool) -> Iterable[ast.AST]:
    scope = source.function_at(line)
    if is_wide and not isinstance(scope, ast.Module):
        return list(ast.walk(scope))
    statement = source.statement_at(line)
    if statement is None or _has_block(statement):  # a decorator, a default, the head of a loop
        return [n for n in ast.walk(source.tree) if line == getattr(n, "lineno", 0)]
    nodes = list(ast.walk(statement))
    on_line = [n for n in nodes if _covers(n, line)]
    return on_line or nodes


def _has_block(statement: ast.stmt) -> bool:
    return isinstance(getattr(statement, "body", None), list)


def _covers(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


def _parses(text: str) -> bool:
    try:
        parsed(text)
    except (SyntaxError, ValueError):
        return False
    return True


def is_equivalent(made: tuple[Candidate, ...]) -> bool:
    """Whether all changes give the same results for finite values."""
    return all(r.is_equivalent for c in made for r in c.remedies)


def is_flat(made: tuple[Candidate, ...]) -> bool:
    """Below a floor the gradient is zero."""
    return any(r.name.startswith("floor_") for c in made for r in c.remedies)


def room_of(made: tuple[Candidate, ...]) -> float:
    """A term that is added to a matrix slightly changes every matrix."""
    return _JITTER if any(r.name.startswith("jitter") for c in made for r in c.remedies) else 0.0


def is_shift(made: tuple[Candidate, ...]) -> bool:
    """A term that is subtracted from every exponent has to cancel."""
    return any(r.name.startswith("shift_") for c in made for r in c.remedies)
