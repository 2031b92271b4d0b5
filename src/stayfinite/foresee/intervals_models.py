"""All models, with the files that register them imported."""

from __future__ import annotations

from . import (
    intervals_backward,
    intervals_layers,
    intervals_linear,
    intervals_move,
    intervals_pointwise,
    intervals_random,
    intervals_reduce,
    intervals_select,
    intervals_whole,
)
from .intervals_at import MODELS

__all__ = ["FILES", "MODELS"]

FILES = (
    intervals_backward, intervals_layers, intervals_linear, intervals_move, intervals_pointwise,
    intervals_random, intervals_reduce, intervals_select, intervals_whole,
)  # fmt: skip
"""A new model goes into one of these, or into a new file that is named here."""
