"""A fix for a layer that was made with a bad epsilon or bad initial weights."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from ...diagnose.evidence import Evidence
from ...remedies import Candidate, Edit, Remedy, Source, apply, with_keyword
from ..evidence.culprit import culprit_of
from ..evidence.layer_lines import norm_layer, zero_weight
from ..laboratory import Laboratory
from .setting_change import SettingChange
from .where_set import source_of

__all__ = ["layer_change"]

_EPS = 1e-5
_WHY_EPS = "a constant row has a variance of 0, and is an ordinary input"
_SPREAD = 1e-3
_ZEROS = {"zeros_": "normal_", "zero_": "normal_"}


def layer_change(lab: Laboratory, e: Evidence) -> SettingChange | None:
    """The changed line that makes the layer, and the layers that it has made, with the change applied."""
    place = None
    with contextlib.suppress(Exception):
        place = culprit_of(lab.investigation, e, "zero_denominator")
    source = source_of(place.file) if place is not None else None
    if place is None or source is None:
        return None
    layer, weight = norm_layer(lab.state, e), zero_weight(lab.state, e)
    if layer is not None:
        call = _call(source, place.line, type(layer).__name__)
        remedy = with_keyword(source, call, "eps", "1e-5") if call is not None else None
        remedy = replace(remedy, why=_WHY_EPS) if remedy is not None else None
        like = [m for r in lab.state.roots.values() for m in r.modules() if _is_like(m, layer)]
        run = partial(_with_eps, like)
    elif weight is not None and not _is_parametrized_spectrum(lab, weight[1]):
        remedy = _other_start(source, place.line)
        run = partial(_started, weight[1])
    else:
        return None
    if remedy is None:
        return None
    after, done = apply(source.text, [remedy])
    return SettingChange(place.file, source.text, after, Candidate(done, after), run)


def _is_parametrized_spectrum(lab: Laboratory, weight: Tensor) -> bool:
    """Whether vectors that were iterated on the zeros at construction stay zero, so that this cannot be run."""
    return any(t is weight and n.endswith(".original") for n, t in lab.state.parameters())


def _is_like(module: nn.Module, layer: nn.Module) -> bool:
    return type(module) is type(layer) and getattr(module, "eps", None) == layer.eps


def _call(source: Source, line: int, name: str) -> ast.Call | None:
    """The only call on this line that makes such a layer."""
    found = [n for n in source.at_line(line) if isinstance(n, ast.Call) and _name(n) == name]
    return found[0] if len(found) == 1 else None


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _other_start(source: Source, line: int) -> Remedy | None:
    """Replace `nn.init.zeros_(w)` and `w.zero_()` by small random numbers."""
    for node in source.at_line(line):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        new = _ZEROS.get(node.func.attr)
        if new is None:
            continue
        _, end = source.span(node.func)
        closing = source.span(node)[1] - 1
        comma = ", " if node.args or node.keywords else ""
        return Remedy(
            name="nonzero_start",
            title=f"start with small random numbers: {new} with std={_SPREAD:g}",
            why="a vector of zeros has no direction, and its norm is divided by",
            line=line,
            edits=(
                Edit(end - len(node.func.attr), end, new),
                Edit(closing, closing, f"{comma}std={_SPREAD:g}"),
            ),
        )
    return None


@contextlib.contextmanager
def _with_eps(layers: list[nn.Module]) -> Iterator[None]:
    kept = [m.eps for m in layers]
    for m in layers:
        m.eps = _EPS  # type: ignore[assignment]
    try:
        yield
    finally:
        for m, eps in zip(layers, kept):
            m.eps = eps


@contextlib.contextmanager
def _started(weight: Tensor) -> Iterator[None]:
    """The weight with such initial values, plus the changes of the steps since then."""
    with torch.no_grad():
        if not weight.any():
            numbers = torch.Generator().manual_seed(0)
            weight.copy_(_SPREAD * torch.randn(weight.shape, generator=numbers))
    yield
