"""Finds the line that made a layer with an epsilon of 0, or weights of 0."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ...diagnose.evidence import Evidence
from ...locate.frames import Frame, is_user_file
from ...runtime.state import TrainState
from .setting_lines import called, made_attribute

__all__ = ["layer_line", "norm_layer", "zero_weight"]

_TINY = 1e-30
_PARAMETRIZED = ".parametrizations."


def norm_layer(state: TrainState, e: Evidence) -> nn.Module | None:
    """The normalization that failed, if its epsilon is 0."""
    module = _module(state, e.location.module)
    eps = getattr(module, "eps", None)
    is_norm = module is not None and type(module).__name__.endswith(("Norm", "Norm1d", "Norm2d"))
    return module if is_norm and isinstance(eps, float) and eps <= _TINY else None


def zero_weight(state: TrainState, e: Evidence) -> tuple[str, Tensor] | None:
    """The weight of zeros that a library's layer divides by its norm, by its name in the layer."""
    if e.birth is None or not ("norm" in e.kernel or e.kernel == "div"):
        return None
    library = e.location.library_file
    if e.kernel == "div" and (library is None or is_user_file(library)):
        return None  # the user's own line, which can be changed itself
    labels = {o.label.split(" ", 1)[-1] for o in e.birth.inputs if o.label}
    for name, tensor in state.parameters():
        given = _given_name(name) if name in labels else None
        if given is not None and not tensor.detach().any():
            return given, tensor
    return None


def _given_name(name: str) -> str | None:
    """The name under which the user's code knows a weight that `weight_norm` or `spectral_norm` has taken over."""
    path, is_parametrized, rest = name.partition(_PARAMETRIZED)
    if is_parametrized:
        attribute, _, kind = rest.partition(".")
        return f"{path}.{attribute}" if kind in ("original", "original1") else None
    return next((name.removesuffix(s) for s in ("_orig", "_v") if name.endswith(s)), None)


def layer_line(state: TrainState, e: Evidence, files: Sequence[str]) -> Frame | None:
    """The line that made the layer, or that filled its weights with zeros."""
    layer = norm_layer(state, e)
    if layer is not None:
        found = called(files, type(layer).__name__)
        named = made_attribute(files, e.location.module or "")
        near = [
            f for f in found if named is not None and (f.file, f.line) == (named.file, named.line)
        ]
        return next((only[0] for only in (near, found) if len(only) == 1), None)
    weight = zero_weight(state, e)
    return made_attribute(files, weight[0]) if weight is not None else None


def _module(state: TrainState, path: str | None) -> nn.Module | None:
    if path is None:
        return None
    for prefix, root in state.roots.items():
        inner = path.removeprefix(prefix).removeprefix(".") if prefix else path
        try:
            return root.get_submodule(inner)
        except AttributeError:
            continue
    return None
