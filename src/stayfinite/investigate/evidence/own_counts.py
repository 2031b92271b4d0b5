"""Finds counters in the user's modules that change with every replay.

A replay uses the current attributes of the model. Code that counts its calls computes something else the second time, so
a finite replay proves nothing about the hardware.
"""

from __future__ import annotations

from typing import Any

from ...runtime.state import TrainState

__all__ = ["OwnCounts"]

_MAX_SHOWN = 3


class OwnCounts:
    """Saves the numbers in the attributes of all modules."""

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self._before = self._read()

    def changed(self) -> tuple[str, ...]:
        """The names of those that have changed."""
        now = self._read()
        names = [k for k, v in now.items() if k in self._before and self._before[k] != v]
        return tuple(names[:_MAX_SHOWN])

    def _read(self) -> dict[str, Any]:
        return {
            ".".join(p for p in (root, path, name) if p): value
            for root, model in self._state.roots.items()
            for path, module in model.named_modules()
            for name, value in vars(module).items()
            if type(value) in (int, float) and not name.startswith("_")
        }
