"""Limits on the magnitude of parameters: `watch("*.alpha", max_abs=1.0)`."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import Protocol

import torch
from torch import Tensor

from ...errors import NonFiniteError, UsageError
from ...numerics.health import numbers_of
from ...records import Event
from ..state import TrainState

__all__ = ["Limit", "everywhere", "watch"]

_ACTIONS = ("warn", "raise")


class Watched(Protocol):
    """The training whose parameters are checked."""

    @property
    def state(self) -> TrainState: ...

    def warn(self, event: Event) -> None: ...


class Limit:
    """A bound on the magnitude of all parameters and buffers whose name matches."""

    def __init__(self, pattern: str, max_abs: float, action: str = "warn") -> None:
        if not isinstance(pattern, str) or not pattern:
            raise UsageError(f"`pattern` must be a name such as '*.alpha', got {pattern!r}")
        if not isinstance(max_abs, (int, float)) or not math.isfinite(max_abs) or max_abs <= 0:
            raise UsageError(f"`max_abs` must be a number above 0, got {max_abs!r}")
        if action not in _ACTIONS:
            raise UsageError(f"unknown action {action!r}; choose one of: {', '.join(_ACTIONS)}")
        self.pattern = pattern
        self.max_abs = float(max_abs)
        self.action = action
        self._beyond: set[str] = set()
        self._has_checked = False

    def matches(self, training: Watched) -> list[tuple[str, Tensor]]:
        named = [*training.state.parameters(), *training.state.buffers]
        return [(n, t) for n, t in named if fnmatchcase(n, self.pattern) and t.is_floating_point()]

    @torch.no_grad()
    def check(self, training: Watched, step: int) -> None:
        """Check the parameters; warns once each time that one exceeds its bound."""
        named = [
            (n, t) for n, t in self.matches(training) if t.numel() and t.layout == torch.strided
        ]
        if not named:
            if not self._has_checked and training.state.roots:
                self._warn(training, step, None, f"watch({self.pattern!r}) matches no parameter")
            self._has_checked = True
            return
        largest = numbers_of([t.detach().abs().amax().float().cpu() for _, t in named])
        for (name, _), size in zip(named, largest):
            if size <= self.max_abs:
                self._beyond.discard(name)
            elif name not in self._beyond:
                self._beyond.add(name)
                text = (
                    f"{name} has reached {size:.4g}, beyond the limit of {self.max_abs:g} "
                    f"that watch({self.pattern!r}) sets"
                )
                self._warn(training, step, name, text, size)
                if self.action == "raise":
                    raise NonFiniteError(f"step {step}: {text}")

    def _warn(
        self, training: Watched, step: int, name: str | None, text: str, size: float | None = None
    ) -> None:
        training.warn(
            Event(
                step=step, phase="parameter", kind="limit", symptom="parameter", name=name,
                value=size, message=text,
            )
        )  # fmt: skip


everywhere: list[Limit] = []
"""Limits of the whole process, for scripts that run under `stayfinite run`."""


def watch(pattern: str, *, max_abs: float, action: str = "warn") -> Limit:
    """Warn (or raise) when a parameter whose name matches `pattern` exceeds `max_abs`.

    For a script under `stayfinite run`; with a Guard use `guard.watch`. Parameters are checked only in the deep
    checks, so it costs nothing in the steps between.

    >>> limit = watch("*.alpha", max_abs=1.0)
    >>> limit.max_abs
    1.0
    >>> everywhere.remove(limit)
    """
    limit = Limit(pattern, max_abs, action)
    everywhere.append(limit)
    return limit
