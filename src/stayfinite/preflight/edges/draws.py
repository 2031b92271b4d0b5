"""Tries a step with other random numbers and with unwritten memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...foresee.search.candidates import Candidate
from ..probes import Seen
from .dead_units import DEAD, DeadUnits
from .unlucky import MODES, Unlucky

__all__ = ["Draw", "draws", "more_draws", "unwritten_memory"]

SEEDS = 6
MORE_SEEDS = 160
"""This many where the step does draw random numbers, as far as time allows."""
_OWN = 12
"""This many of the training's own batches meet memory that is full of NaN."""
_LIKELY = 1e4
_POSSIBLE = 1e6
"""Steps within which such a draw is to be expected."""
Around = Callable[[], AbstractContextManager[Any]]


@dataclass
class Draw:
    """The same batch under other circumstances."""

    candidate: Candidate
    around: Around
    mode: Unlucky | DeadUnits | None = None
    is_first: bool = False
    """It is for the training's first step; later its moments are no longer zero."""
    is_counted: bool = True
    """The mode knows how often such a step comes."""

    def is_used(self, seen: Seen) -> bool:
        """Whether the step has drawn such a number at all, as far as that is known."""
        return self.mode is None or self.mode.is_used or not seen.is_finite

    def judged(self) -> Candidate:
        """The candidate with how often it comes."""
        if self.mode is None or not self.is_counted:
            return self.candidate
        chance = self.mode.chance
        step = 1 / max(chance, 1e-12)
        level = "likely" if step <= _LIKELY else "possible" if step <= _POSSIBLE else "far"
        if isinstance(self.mode, DeadUnits):  # by what one step showed, if units are independent
            level = "possible" if level == "likely" else level
            why = f"by how often each unit is off, about once in {max(1.0, step):,.0f} steps"
            return replace(self.candidate, level=level, why=why)
        why = f"a draw with probability {chance:.1e} in each step: expected at step ~{step:,.0f}"
        return replace(self.candidate, level=level, why=why, probability=chance)


def draws(batches: Sequence[Any], is_random: bool = True) -> Iterator[Draw]:
    """The same batch with other random numbers, with unlucky ones, with memory full of NaN."""
    batch = batches[0]
    for what, make in MODES if is_random else ():
        mode = make()
        yield Draw(Candidate("random", what, lambda: batch), _given(mode), mode)
    yield from _zero_gradients(batch)
    yield from _dead_units(batch)
    for seed in range(1, SEEDS + 1 if is_random else 1):
        yield _other(batch, seed)
    for own in batches[:_OWN]:
        memory = Candidate(
            "memory", "memory that is used and was never written", _given(own), "likely",
            "fresh memory holds whatever was there before: NaN and Inf now and then",
        )  # fmt: skip
        yield Draw(memory, unwritten_memory)


def _zero_gradients(batch: Any) -> Iterator[Draw]:
    """Gradients of exactly zero in the first step: an unused row, a dead unit, a part that is not there."""
    for what, how in (
        (
            "a gradient whose first entries are exactly zero (unused rows, dead units)",
            _first_entries,
        ),
        ("a gradient that is exactly zero (a part that this batch does not use)", _last_one),
    ):
        yield Draw(Candidate("zero-grad", what, lambda: batch), _later_grads(how), is_first=True)


def _dead_units(batch: Any) -> Iterator[Draw]:
    """A ReLU that is off for good, or for one sample: dead units come with training."""
    for what, how, is_counted in DEAD:
        mode = DeadUnits(how)
        candidate = Candidate(
            "dead", what, lambda: batch, why="units of a ReLU die in many trainings"
        )
        yield Draw(candidate, _given(mode), mode, is_counted=is_counted)


def _first_entries(grads: list[Tensor]) -> None:
    for g in grads:
        if g.numel() > 1:
            g[:1].zero_() if g.dim() > 1 else g.view(-1)[:1].zero_()


def _last_one(grads: list[Tensor]) -> None:
    for g in grads[-1:]:
        g.zero_()


def _later_grads(how: Callable[[list[Tensor]], None]) -> Around:
    return lambda: _changed_gradients(how)


@contextlib.contextmanager
def _changed_gradients(how: Callable[[list[Tensor]], None]) -> Iterator[None]:
    """Every optimizer finds its gradients changed so."""

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        params = [p for group in optimizer.param_groups for p in group["params"]]
        with torch.no_grad():
            how([p.grad for p in params if p.grad is not None and p.grad.layout is torch.strided])

    handle = register_optimizer_step_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()


def more_draws(batches: Sequence[Any]) -> Iterator[Draw]:
    """Many more seeds, for a step that is known to draw random numbers."""
    for seed in range(SEEDS + 1, MORE_SEEDS + 1):
        yield _other(batches[seed % len(batches)], seed)


def _other(batch: Any, seed: int) -> Draw:
    candidate = Candidate(
        "draw", f"the same batch with other random numbers (seed {seed})", lambda: batch,
        "certain", f"seen with one of {seed} other seeds: expected at step ~{seed}",
        probability=1 / seed,
    )  # fmt: skip
    return Draw(candidate, _later(seed))


def _given(value: Any) -> Callable[[], Any]:
    return lambda: value


def _later(seed: int) -> Around:
    return lambda: _seeded(seed)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    torch.manual_seed(seed)
    yield


@contextlib.contextmanager
def unwritten_memory() -> Iterator[None]:
    """`torch.empty` and its kin are full of NaN."""
    switch: Any = torch.utils.deterministic
    fill = switch.fill_uninitialized_memory
    is_on = torch.are_deterministic_algorithms_enabled()
    is_soft = torch.is_deterministic_algorithms_warn_only_enabled()
    switch.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(is_on, warn_only=is_soft)
        switch.fill_uninitialized_memory = fill
