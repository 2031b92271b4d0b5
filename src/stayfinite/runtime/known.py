"""Recognizes repeated incidents, which are counted and not investigated again.

Recognition has to be cheap: by the symptom, by whether the batch itself is bad, by the operators that made the loss,
and by the line that was about to apply it. So that a new cause cannot hide behind a known one, repeated failures are
still investigated, less and less often: the first, the fourth, the sixteenth, …
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from ..numerics.health import is_finite
from ..records import Incident
from .batches import named_tensors
from .rng import RngState
from .window import Failure, Window

__all__ = ["Draw", "KnownIncident", "KnownIncidents", "calling_lines", "signature_of"]

_EVERY = 4
_MAX_TENSORS = 16
_MAX_OPERATORS = 12
"""Only the graph nodes nearest to the loss, which show the branch that the loop took."""


@dataclass
class Draw:
    """The random numbers of the last failed step."""

    start: RngState
    following: RngState
    """The position of the first numbers that no step has tried yet."""


@dataclass
class KnownIncident:
    """An incident, and how often it was repeated."""

    incident: Incident
    keeps_random_state: bool = False
    num_seen: int = 1
    next_investigation: int = _EVERY

    @property
    def is_due(self) -> bool:
        """Whether this occurrence is investigated again."""
        return self.num_seen >= self.next_investigation


class KnownIncidents:
    """The incidents of one training by signature, and the fixes that were proved for them."""

    def __init__(self) -> None:
        self._by_signature: dict[Hashable, KnownIncident] = {}
        self.solved: dict[Any, tuple[Any, Any, int]] = {}
        """Proved fixes by place: they are not searched again for the same failure."""
        self.last_draw: Draw | None = None

    def forget(self) -> None:
        """Investigate the next failure again: the training has changed."""
        self._by_signature.clear()

    def has_failed_on(self, rng: RngState | None) -> bool:
        """Whether the last failed step drew the very same random numbers."""
        draw = self.last_draw
        return draw is not None and rng is not None and draw.start.is_same(rng)

    def note_draw(self, start: RngState | None, after: RngState) -> None:
        """Remember the numbers of a failed step, if it drew any."""
        if start is not None and not start.is_same(after):
            self.last_draw = Draw(start, after)

    def find(self, signature: Hashable) -> KnownIncident | None:
        """The incident that this failure repeats; None if it has to be investigated."""
        known = self._by_signature.get(signature)
        if known is None:
            return None
        known.num_seen += 1
        if known.is_due:
            known.next_investigation *= _EVERY
            return None
        return known

    def add(self, signature: Hashable, incident: Incident, keeps_random_state: bool) -> None:
        known = self._by_signature.get(signature)
        if known is None:
            self._by_signature[signature] = KnownIncident(incident, keeps_random_state)
        else:
            known.incident, known.keeps_random_state = incident, keeps_random_state


def signature_of(window: Window, failure: Failure) -> Hashable:
    """The properties of a failure that are known without an investigation."""
    places = calling_lines(sys._getframe(1))
    value = failure.value
    kind = "" if value is None else "nan" if math.isnan(value) else "inf" if math.isinf(value) else "finite"  # fmt: skip
    name = failure.name if failure.symptom != "gradient" else None
    is_bad = _has_bad_batch(window)
    return failure.symptom, name, kind, is_bad, _operators(window), places, window.optimizer_id


def _operators(window: Window) -> tuple[str, ...]:
    """The operators that made the loss, the last one first; () if the loss is gone."""
    loss = window.live_loss() if window.live_loss is not None else None
    waiting = [loss.grad_fn] if loss is not None and loss.grad_fn is not None else []
    names: list[str] = []
    while waiting and len(names) < _MAX_OPERATORS:
        node = waiting.pop(0)
        names.append(node.name())
        waiting += [n for n, _ in node.next_functions if n is not None]
    return tuple(names)


def calling_lines(frame: FrameType | None) -> tuple[tuple[str, int], ...]:
    """The three innermost lines of the user's and the frameworks' code on the stack."""
    found: list[tuple[str, int]] = []
    while frame is not None and len(found) < 3:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("stayfinite.", "torch.")):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _has_bad_batch(window: Window) -> bool:
    for batch in window.batches:
        for i, (_, tensor) in enumerate(named_tensors(batch.value)):
            if i >= _MAX_TENSORS:
                break
            if not is_finite(tensor):
                return True
    return False
