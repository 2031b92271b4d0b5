"""A fix for a layer that was made with a bad epsilon or bad initial weights."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from ...diagnose.evidence import Evidence
from ...records import Culprit
from ...remedies import Candidate, Edit, Remedy, Source, apply, with_keyword
from ..evidence.layer_lines import norm_layer, zero_weight
from ..laboratory import Laboratory
from .setting_change import SettingChange, source_of_culprit

__all__ = ["layer_changes"]

_EPS = ("1e-5", "1e-12")
"""The usual one first; the other leaves rows with a small variance as they are."""
_ROOM = 1e-3
"""How much of a healthy loss an epsilon may change: the proof says how much it is."""
_WHY_EPS = "a constant row has a variance of 0, and is an ordinary input"
_SPREAD = 1e-3
_ZEROS = {"zeros_": "normal_", "zero_": "normal_"}
_ITERATIONS = 15
"""What `spectral_norm` does at construction."""


def layer_changes(lab: Laboratory, e: Evidence) -> Iterator[SettingChange]:
    """The changed line that makes the layer, and the layers that it has made, with the change applied."""
    found = source_of_culprit(lab, e, "zero_denominator")
    if found is None:
        return
    place, source = found
    layer, weight = norm_layer(lab.state, e), zero_weight(lab.state, e)
    if layer is not None:
        call = _call(source, place.line, type(layer).__name__)
        if call is None:
            return
        like = [m for m in _modules(lab) if _is_like(m, layer)]
        for eps in _EPS:
            remedy = replace(with_keyword(source, call, "eps", eps), why=_WHY_EPS)
            yield _changed(place, source, remedy, partial(_with_eps, like, float(eps)), _ROOM)
    elif weight is not None:
        start = _other_start(source, place.line)
        spectra = [m for m in _modules(lab) if _is_spectrum_of(m, weight[1])]
        if start is not None:
            yield _changed(place, source, start, partial(_started, weight[1], spectra))


def _changed(
    place: Culprit,
    source: Source,
    remedy: Remedy,
    run: Callable[[], contextlib.AbstractContextManager[None]],
    room: float = 0.0,
) -> SettingChange:
    after, done = apply(source.text, [remedy])
    candidate = Candidate(done, after)
    return SettingChange(place.file, source.text, after, candidate, run, room=room)


def _modules(lab: Laboratory) -> list[nn.Module]:
    return [m for root in lab.state.roots.values() for m in root.modules()]


def _is_spectrum_of(module: nn.Module, weight: Tensor) -> bool:
    """Whether it is `spectral_norm` of this weight, which was iterated on its zeros when it was made."""
    is_it = isinstance(module, ParametrizationList) and module._parameters.get("original") is weight
    return is_it and hasattr(module[0], "_power_method")  # type: ignore[index]


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
def _with_eps(layers: list[nn.Module], eps: float) -> Iterator[None]:
    kept = [m.eps for m in layers]
    for m in layers:
        m.eps = eps  # type: ignore[assignment]
    try:
        yield
    finally:
        for m, old in zip(layers, kept):
            m.eps = old


@contextlib.contextmanager
def _started(weight: Tensor, spectra: list[Any]) -> Iterator[None]:
    """The weight with such initial values, plus the changes of the steps since then."""
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        if not weight.any():
            weight.copy_(_SPREAD * torch.randn(weight.shape, generator=numbers))
        for spectrum in (s[0] for s in spectra):
            if not spectrum._u.any():
                for vector in (spectrum._u, spectrum._v):
                    vector.copy_(torch.randn(vector.shape, generator=numbers))
                matrix = spectrum._reshape_weight_to_matrix(weight)
                spectrum._power_method(matrix, _ITERATIONS)
    yield
