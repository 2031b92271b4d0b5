"""The table of all models: each of these files registers its own when it is imported."""

from __future__ import annotations

from . import (
    backward,
    layers,
    linear,
    move,
    pointwise,
    random_draws,
    reduce,
    select,
    whole_layers,
)
from .call import MODELS

__all__ = [
    "MODELS",
    "backward",
    "layers",
    "linear",
    "move",
    "pointwise",
    "random_draws",
    "reduce",
    "select",
    "whole_layers",
]
