"""Distributions: parameters kept away from zero, observations kept inside the support."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .matching import clamped
from .source import Source

__all__: list[str] = []

_SCALED = ("Normal", "LogNormal", "Laplace", "Cauchy", "Gumbel", "HalfNormal", "MultivariateNormal")
_COUNTED = (
    "Beta",
    "Gamma",
    "Dirichlet",
    "Exponential",
    "Poisson",
    "InverseGamma",
    "Weibull",
    "Pareto",
)


_CHOICES = ("Categorical", "OneHotCategorical", "RelaxedOneHotCategorical", "Multinomial")


@pattern(
    "floor_distribution",
    "give the scale, rate or probabilities of the distribution a floor",
    "its density divides by it or takes its logarithm; above the floor nothing changes",
)
def floor_distribution(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    floor = "1e-3" if source.dtype in ("float16", "bfloat16") else "1e-6"
    return _floored(source, node, floor)


@pattern(
    "floor_distribution_more",
    "give the scale of the distribution a floor of 0.01",
    "a spread that shrinks to nothing makes every density infinite; above the floor nothing changes",
)
def floor_distribution_more(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    name = _name(node)
    return _floored(source, node, "0.01") if name in _SCALED else None


def _name(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def _floored(source: Source, node: ast.AST, floor: str) -> list[Edit] | None:
    if not isinstance(node, ast.Call):
        return None
    name = _name(node)
    given = [k.value for k in node.keywords if k.arg in ("scale", "rate", "concentration")]
    if name in _SCALED:
        given += node.args[1:2]
    elif name == "StudentT":
        given += node.args[2:3]
    elif name in _COUNTED:
        given += node.args
    elif name in _CHOICES:
        given = [k.value for k in node.keywords if k.arg == "probs"]
        given += node.args[:1] if name.endswith("Categorical") else []
    else:
        return None
    edits = [e for part in given if not isinstance(part, ast.Constant)
             for e in clamped(source, part, low=floor)]  # fmt: skip
    return edits or None


@pattern(
    "inside_support",
    "keep what is observed inside of (0, 1)",
    "the density has its logarithm at both ends of its support; between them nothing changes",
    is_equivalent=False,
)
def inside_support(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    limit = "1e-3" if source.dtype in ("float16", "bfloat16") else "1e-6"
    observed = _observed(node)
    return clamped(source, observed, limit, f"1 - {limit}") if observed is not None else None


@pattern(
    "inside_both_ends",
    "keep what is observed inside of (-1, 1)",
    "at both ends the inverse of tanh is infinite; between them nothing changes",
    is_equivalent=False,
)
def inside_both_ends(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    limit = "1e-3" if source.dtype in ("float16", "bfloat16") else "1e-6"
    observed = _observed(node)
    return (
        clamped(source, observed, f"-1 + {limit}", f"1 - {limit}") if observed is not None else None
    )


@pattern(
    "above_support",
    "keep what is observed above 0",
    "the density takes its logarithm; above the floor nothing changes",
    is_equivalent=False,
)
def above_support(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    limit = "1e-3" if source.dtype in ("float16", "bfloat16") else "1e-6"
    observed = _observed(node)
    return clamped(source, observed, low=limit) if observed is not None else None


def _observed(node: ast.AST) -> ast.expr | None:
    """The argument of `distribution.log_prob(value)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    is_plain = len(node.args) == 1 and not node.keywords
    return node.args[0] if node.func.attr == "log_prob" and is_plain else None
