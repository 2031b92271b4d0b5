"""Searches for a value of a setting that keeps the training stable after the last healthy snapshot.

A value passes if the available batches stay finite with it, and neither the loss nor the weights diverge. Values are bisected by
short trials, and the proposed one is run once more for longer. All of it takes some dozens of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from statistics import fmean
from typing import Any

import torch

from ..diagnose.evidence import Searched
from ..runtime.ranks.shards import local
from ..runtime.window import Replay, ReplayResult
from ..sandbox.compute import computing_only
from .laboratory import Laboratory

__all__ = ["Search", "has_risen", "rates_below"]

_TRIAL_STEPS = 5
_PROOF_STEPS = 16
_MOST_STEPS = 56
_FEWEST = 3
"""The minimum number of steps that a value has to pass."""
_NEAR = 2
_FEW_BATCHES = 4
"""With fewer steps the result is less reliable, so the value is chosen further from what failed."""
_REDRAWN = 4
_BETTER = 0.9
"""A smaller value is chosen if it leaves at most this share of the loss."""
_LEAP = 4
"""How many smaller values are tried after a failure: two decades."""
_FAR = 10.0
"""A loss or weights that many times the first ones have diverged."""

Trial = Generator[Replay, ReplayResult, bool]


def rates_below(rate: float, least: float = 1e-8) -> list[float]:
    """1, 3, 10, 30, … below a rate that failed, the largest first.

    >>> rates_below(0.05, 1e-3)
    [0.01, 0.003, 0.001]
    """
    top = math.floor(math.log10(rate))
    low = min(math.floor(math.log10(least)), top - 3)
    values = [float(f"{digit}e{power}") for power in range(top, low - 1, -1) for digit in (3, 1)]
    return [v for v in values if least <= v <= rate / 2.5 or (v <= rate / 2.5 and rate < least)]


_CYCLES = ("OneCycleLR", "CyclicLR")
_GREW = 1.05


def has_risen(lab: Laboratory) -> bool:
    """Whether a schedule or the loop has raised the rate above the one that the optimizer was made with.

    Then an upper limit is searched; a cycle with its own peak is scaled instead.
    """
    if any(type(s).__name__ in _CYCLES for s in lab.state.schedulers):
        return False
    for optimizer in lab.state.optimizers:
        for group in optimizer.param_groups:
            given = group.get("initial_lr", optimizer.defaults.get("lr"))
            if given is not None and float(group.get("lr", 0.0)) > _GREW * float(given):
                return True
    return False


class Search:
    """The search for one setting of one training."""

    def __init__(
        self,
        lab: Laboratory,
        values: Sequence[float],
        contexts: Callable[[float], list[AbstractContextManager[Any]]],
    ) -> None:
        self._lab = lab
        self._values = values
        self._contexts = contexts
        self._vehicle, self._windows = lab.trial_steps()
        is_redrawn = any(w.is_loaderless for w in self._windows)
        self._cycle = _REDRAWN if is_redrawn else len(self._windows)
        """The period after which the same batches come again; for a loop that draws its own, a few steps for a mean."""
        self._num_steps = 0
        self._failed: float | None = None
        self._passed: dict[float, int] = {}
        """The number of steps that each value has passed."""
        self._learned: set[float] = set()
        """Values with which the loss was lower when the batches were repeated, or with which none was repeated."""
        self._left: dict[float, float] = {}
        """The mean loss of the last, repeated batches, for values that were run longer."""

    def run(
        self, before: float | None, usual: float
    ) -> Generator[Replay, ReplayResult, Searched | None]:
        """Run the search; None if nothing could be run."""
        if not self._windows or not self._values:
            return None
        with (
            computing_only()
        ):  # entered only once, because each replay would open and close it again
            return (yield from self._run(before, usual))

    def _run(
        self, before: float | None, usual: float
    ) -> Generator[Replay, ReplayResult, Searched | None]:
        self._failed = before
        best = yield from self._bisect(self._start(usual))
        while best is not None and self._has_time:
            value = self._values[best]
            if (yield from self._passes(value, _PROOF_STEPS)) and value in self._learned:
                yield from self._passes_better(best)
                break
            best = best + 2 if best + 2 < len(self._values) else None
        if not self._num_steps:
            return None
        least = self._failed if self._failed is not None else math.inf
        safe = {v: n for v, n in self._passed.items() if v < least}
        if not safe:
            return Searched(before=before, failed=self._failed)
        value = self._best_of(safe)
        return Searched(
            before=before, passed=value, failed=self._failed, num_steps=safe[value],
            num_batches=min(safe[value], len(self._windows)),
        )  # fmt: skip

    def _passes_better(self, at: int) -> Generator[Replay, ReplayResult, None]:
        """Run the next smaller value as well: near the limit a loss is finite but oscillates."""
        has_room = self._num_steps + _PROOF_STEPS <= _MOST_STEPS and not self._lab.is_late
        if has_room and at + 1 < len(self._values) and self._values[at] in self._left:
            yield from self._passes(self._values[at + 1], _PROOF_STEPS)

    def _best_of(self, safe: dict[float, int]) -> float:
        """The value that was run longest, if possible one with a falling loss; then that with the lowest loss."""
        value = max(safe, key=lambda v: (safe[v] > _TRIAL_STEPS, v in self._learned, safe[v], v))
        mine = self._left.get(value)
        lower = [v for v in safe if v < value and v in self._learned and v in self._left]
        if mine is None or not lower or safe[lower[0]] < safe[value]:
            return value
        return lower[0] if self._left[lower[0]] < _BETTER * mine else value

    def _start(self, usual: float) -> int:
        """A value that is used elsewhere, or the third below the one that failed."""
        at = next((i for i, v in enumerate(self._values) if v <= usual * 1.01), len(self._values))
        return min(max(at, min(2, len(self._values) - 1)), len(self._values) - 1)

    def _bisect(self, at: int) -> Generator[Replay, ReplayResult, int | None]:
        """The value below the largest that passes: one that barely passes a few steps may not pass many."""
        bad, good = -1, None
        while self._has_time:
            if (yield from self._passes(self._values[at], _TRIAL_STEPS)):
                good = at
            elif not self._num_steps:
                return None
            else:
                bad = at
            if good is None:
                if at == len(self._values) - 1:
                    return None
                at = min(at + _LEAP, len(self._values) - 1)
                continue
            if good - bad <= _NEAR:
                break
            at = (good + bad) // 2
        if good is None:
            return None
        is_redrawn = any(w.is_loaderless for w in self._windows)  # other data with every run
        distance = 1 if is_redrawn or len(self._windows) >= _FEW_BATCHES else 3
        return min(good + distance, len(self._values) - 1)

    @property
    def _has_time(self) -> bool:
        return self._num_steps + _TRIAL_STEPS <= _MOST_STEPS and not self._lab.is_late

    def _passes(self, value: float, length: int) -> Trial:
        """Run up to this many steps with a value, as long as there is time."""
        lab = self._lab
        lab.to_snapshot()
        before, losses = self._size(), []
        for i in range(length):
            if lab.is_late and i >= _FEWEST:
                break
            window = self._windows[i % len(self._windows)]
            lab.next_step(window, i >= len(self._windows))
            result = yield Replay(
                window=window, contexts=self._contexts(value), is_applied=True,
                vehicle=self._vehicle,
            )  # fmt: skip
            losses += result.losses[-1:]
            is_fine = result.failure is None and result.is_complete
            if not losses or (is_fine and not result.num_steps):
                return False  # it cannot be run, or moves nothing: that says nothing of the value
            self._num_steps += 1
            if not is_fine or self._has_grown(before) or _has_risen(losses, self._cycle):
                self._failed = value if self._failed is None else min(value, self._failed)
                return False
            lab.settle()
            if i + 1 >= _FEWEST:
                self._passed[value] = max(i + 1, self._passed.get(value, 0))
        if not _is_higher(losses, self._cycle):
            self._learned.add(value)
        if len(losses) >= max(length, 2 * self._cycle) and length > _TRIAL_STEPS:
            self._left[value] = fmean(losses[-self._cycle :])
        return True

    @torch.no_grad()
    def _size(self) -> float:
        """The norm of all weights."""
        parameters = self._lab.state.parameters()
        weights = [local(p.detach()) for _, p in parameters if p.is_floating_point()]
        dense = [p for p in weights if p.layout == torch.strided and p.numel()]
        return math.sqrt(sum(float(n) ** 2 for n in torch._foreach_norm(dense))) if dense else 0.0

    def _has_grown(self, before: float) -> bool:
        return not self._size() <= _FAR * max(before, 1e-3)


def _has_risen(losses: list[float], num_windows: int) -> bool:
    """Whether the loss diverges: far above the first, or above that of the same batches before."""
    if len(losses) < 2:
        return False
    if losses[-1] - losses[0] > _FAR * max(abs(losses[0]), 1e-3):
        return True
    return _is_higher(losses, num_windows, by=0.5)


def _is_higher(losses: list[float], num_windows: int, by: float = 0.0) -> bool:
    """Whether the loss is higher by this share when the same batches are repeated."""
    if len(losses) - num_windows < max(3, num_windows):
        return False
    late, early = fmean(losses[-num_windows:]), fmean(losses[:num_windows])
    return late - early > by * max(abs(early), 1e-3)
