"""Facts for an incident that only the running training knows.

They are read once per investigated incident, when the host waits anyway.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from ..locate.frames import is_user_file
from ..report.text import short_path
from .frames import calling_frames, variables
from .state import TrainState
from .warn.limits import Limit

__all__ = ["LastSave", "facts"]

_MOST = 8
_SMALL = 16


class LastSave:
    """The last good checkpoint that this run has written, and the interval between checkpoints."""

    def __init__(self) -> None:
        self.path = ""
        self.step: int | None = None
        self._intervals: list[int] = []

    def note(self, path: str, step: int) -> None:
        if self.step is not None and step > self.step:
            self._intervals = [*self._intervals[-3:], step - self.step]
        self.path, self.step = path, step

    def cost(self, step: int) -> str:
        """A sentence that says how many steps would be lost if the run ended now."""
        if self.step is None:
            return (
                f"no checkpoint has been written yet: if the run ended here, "
                f"{f'all {step} steps' if step > 1 else 'its one step'} would be lost"
                if step
                else ""
            )
        since = max(step - self.step, 0)
        text = f"the last good checkpoint is {short_path(self.path)}, "
        if since:
            text += (
                f"{since} step{'s' * (since != 1)} ago: {'those' if since != 1 else 'that'} would be "
                "lost if the run ended here"
            )
        else:
            text += "written after the last good step"
        return f"{text} (saved every {max(self._intervals)})" if self._intervals else text


def facts(
    home: str | None, state: TrainState, limits: Iterable[Limit], cost: str, is_loop: bool
) -> list[str]:
    """The parts of the loss, the scalar parameters of the module `home`, and the cost of a failure.

    `is_loop`: the frames that computed the loss still exist; under `guard.step` the loss function has returned.
    """
    losses = _losses() if is_loop else ()
    return [*losses, *_scalars(home, state, list(limits)), *([cost] if cost else [])]


def _losses() -> Iterator[str]:
    """The variables of the script that are named as losses, with their current values."""
    found: dict[str, str] = {}
    for frame in calling_frames(sys._getframe(1)):
        if not is_user_file(frame.f_code.co_filename):
            continue
        for name, value in variables(frame).items():
            for key, number in _named(name, value):
                found.setdefault(key, f"{number:.4g}")
    if len(found) > 1:
        shown = ", ".join(f"{k} {v}" for k, v in list(found.items())[:_MOST])
        yield f"the losses in the script's variables: {shown}"


def _named(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if issubclass(type(value), dict):
        for key, inner in list(value.items())[:_SMALL]:
            if isinstance(key, str) and not isinstance(inner, dict):
                yield from _named(key, inner)
        return
    if "loss" not in name.lower() or "weight" in name.lower() or "scale" in name.lower():
        return
    if isinstance(value, float):
        yield name, value
    elif isinstance(value, Tensor) and value.is_floating_point() and 0 < value.numel() <= _SMALL:
        numbers = value.detach().flatten().tolist()
        for i, number in enumerate(numbers):
            yield name if len(numbers) == 1 else f"{name}[{i}]", number


def _scalars(home: str | None, state: TrainState, limits: list[Limit]) -> Iterator[str]:
    """Gates, temperatures, scales: the scalar parameters of the module where the value was born, and all
    watched ones with their limits."""
    shown: list[str] = []
    for name, value in state.parameters():
        if value.numel() != 1 or not value.is_floating_point():
            continue
        limit = next((x for x in limits if fnmatchcase(name, x.pattern)), None)
        is_near = bool(home) and name.rpartition(".")[0] == home
        if not is_near and limit is None:
            continue
        number = float(value.detach())
        text = f"{name} {number:.4g}"
        if limit is not None:
            is_over = not abs(number) <= limit.max_abs or math.isnan(number)
            text += f" (limit {limit.max_abs:g}{', exceeded' if is_over else ''})"
        shown.append(text)
    if shown:
        yield f"scalar parameters used there: {', '.join(shown[:_MOST])}"
