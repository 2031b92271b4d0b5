"""The table of all models; importing it registers them."""

from __future__ import annotations

from . import (
    backward as intervals_backward,
)
from . import (
    layers as intervals_layers,
)
from . import (
    linear as intervals_linear,
)
from . import (
    move as intervals_move,
)
from . import (
    pointwise as intervals_pointwise,
)
from . import (
    random_draws as intervals_random,
)
from . import (
    reduce as intervals_reduce,
)
from . import (
    select as intervals_select,
)
from . import (
    whole_layers as intervals_whole,
)
from .call import MODELS

__all__ = ["FILES", "MODELS"]

FILES = (
    intervals_backward, intervals_layers, intervals_linear, intervals_move, intervals_pointwise,
    intervals_random, intervals_reduce, intervals_select, intervals_whole,
)  # fmt: skip
"""A new model goes into one of these files, or into a new file that is listed here."""
