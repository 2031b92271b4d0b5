"""A stand-in for an optimizer that a copied schedule can update."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["StandIn"]


class StandIn:
    """Parameter groups with only their rates.

    A real optimizer would be taken for one of the training, and its deletion for the end of the training.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        self.param_groups = list(groups)
        self.defaults = dict(self.param_groups[0]) if self.param_groups else {}

    def step(self) -> None:
        """Schedules require this attribute."""
