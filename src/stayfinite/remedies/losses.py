"""Losses of torch and special functions that take a logarithm or an exponential inside."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .matching import call, clamped, floored, name_of
from .source import Source

__all__: list[str] = []

_BESSEL = {"i0": "i0e", "i1": "i1e"}


@pattern(
    "floor_kl_target",
    "give the target of the divergence a floor: the smallest number of its dtype",
    "t log(t) is 0 at 0, but its derivative is -inf there; above the floor nothing changes",
)
def floor_kl_target(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    given = _given(source, node, "kl_div", "KLDivLoss")
    if given is None or len(given) < 2:
        return None
    return floored(source, given[1], "tiny")


@pattern(
    "bound_log_rate",
    "bound the logarithm of the rate: .clamp(max=20)",
    "the loss takes its exponential; exp(20) is 5e8, far beyond an ordinary count",
)
def bound_log_rate(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    given = _given(source, node, "poisson_nll_loss", "PoissonNLLLoss")
    return clamped(source, given[0], high="20") if given else None


@pattern(
    "bound_log_rate_low",
    "bound the logarithm of the rate: .clamp(max=10)",
    "the loss takes its exponential; exp(10) is 2e4, and a single sample does not drown the others",
)
def bound_log_rate_low(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    given = _given(source, node, "poisson_nll_loss", "PoissonNLLLoss")
    return clamped(source, given[0], high="10") if given else None


@pattern(
    "log_bessel",
    "take the logarithm of the scaled Bessel function, and add what it was scaled by",
    "i0(x) grows as exp(x) and overflows at 92; i0e(x) = i0(x) exp(-|x|) is at most 1",
)
def log_bessel(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    log = call(node, "log")
    inside = source.definition(log[1]) if log is not None and not log[2] else None
    found = call(inside, *_BESSEL) if inside is not None else None
    torch = name_of(source, "torch")
    if found is None or log is None or torch is None or inside is not log[1]:
        return None
    operand, scaled = source.text_of(found[1]), _BESSEL[found[0]]
    text = f"({torch}.special.{scaled}({operand}).log() + ({operand}).abs())"
    return [Edit(*source.span(node), text)]


def _given(source: Source, node: ast.AST, function: str, kind: str) -> list[ast.expr] | None:
    """What a loss is given in order: by its function, or by a module of this class."""
    if not isinstance(node, ast.Call):
        return None
    if not (_last(node.func) == function or _is_made_by(source, node.func, kind)):
        return None
    names = ("input", "target")
    rest = {k.arg: k.value for k in node.keywords}
    given = [*node.args, *(rest[n] for n in names[len(node.args) :] if n in rest)]
    return None if any(isinstance(a, ast.Starred) for a in given) else given


def _last(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _is_made_by(source: Source, node: ast.expr, kind: str) -> bool:
    """`nn.KLDivLoss()(…)`, or a name or attribute that is assigned such a module somewhere in the file."""
    if isinstance(node, ast.Call):
        return _last(node.func) == kind
    name = _last(node)
    return bool(name) and any(
        isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and _last(n.value.func) == kind
        and any(_last(t) == name for t in n.targets)
        for n in ast.walk(source.tree)
    )
