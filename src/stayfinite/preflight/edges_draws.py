"""What a step does with other random numbers, and with memory that nobody has written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..foresee.candidates import Candidate
from .probes import Seen

__all__ = ["Draw", "UnluckyRandom", "draws", "more_draws", "unwritten_memory"]

SEEDS = 6
MORE_SEEDS = 160
"""So many where the step does draw random numbers, as far as time allows."""
_OWN = 12
"""So many of the training's own batches meet memory that is full of NaN."""
ENDS = (
    (
        "one of the largest numbers that torch.rand gives (bfloat16 rounds it to 1)",
        1 - 2.0**-10,
        2.0**-9,
    ),
    (
        "one of the largest numbers that torch.rand gives (float16 rounds it to 1)",
        1 - 2.0**-13,
        2.0**-12,
    ),
    ("the smallest number that torch.rand gives", 0.0, 2.0**-24),
    ("the largest number that torch.rand gives", 1 - 2.0**-24, 2.0**-24),
)
"""(what it is, a number, how often one like it or nearer to the end comes in float32)"""
_LIKELY = 1e4
_POSSIBLE = 1e6
"""Steps within which such a draw is to be expected."""
_DRAWING: set[Any] = {torch.rand, torch.rand_like}
_IN_PLACE: set[Any] = {Tensor.uniform_}
_CHANCE = {
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
"""How often one draw of this dtype is exactly 0: its random bits are those of the mantissa."""

Around = Callable[[], AbstractContextManager[Any]]


class UnluckyRandom(TorchFunctionMode):
    """The first number of every uniform draw is this one.

    >>> with UnluckyRandom(0.0) as mode:
    ...     x = torch.rand(3)
    >>> float(x[0]), bool(x[1] > 0), mode.num_drawn
    (0.0, True, {torch.float32: 3})
    """

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value
        self.num_drawn: dict[torch.dtype, int] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        is_unit = func in _DRAWING or (func in _IN_PLACE and len(args) == 1 and not kwargs)
        if is_unit and isinstance(result, Tensor) and result.numel():
            self.num_drawn[result.dtype] = self.num_drawn.get(result.dtype, 0) + result.numel()
            with torch.no_grad():
                result.view(-1)[0] = self.value
        return result

    def chance(self, each: float) -> float:
        """Of one such number in a step; `each` in a draw of float32."""
        own = _CHANCE if self.value == 0.0 else {}
        return sum(own.get(d, each) * n for d, n in self.num_drawn.items())


@dataclass
class Draw:
    """The same batch under other circumstances."""

    candidate: Candidate
    around: Around
    mode: UnluckyRandom | None = None
    each: float = 0.0
    """How often one draw gives such a number."""

    def is_used(self, seen: Seen) -> bool:
        """Whether the step has drawn such a number at all, as far as that is known."""
        return self.mode is None or bool(self.mode.num_drawn) or not seen.is_finite

    def judged(self) -> Candidate:
        """The candidate with how often it comes."""
        if self.mode is None:
            return self.candidate
        chance = self.mode.chance(self.each)
        step = 1 / max(chance, 1e-12)
        level = "likely" if step <= _LIKELY else "possible" if step <= _POSSIBLE else "far"
        why = f"a draw with probability {chance:.1e} in each step: expected at step ~{step:,.0f}"
        return replace(self.candidate, level=level, why=why, probability=chance)


def draws(batches: Sequence[Any]) -> Iterator[Draw]:
    """The same batch with other random numbers, with unlucky ones, with memory full of NaN."""
    batch = batches[0]
    for what, value, each in ENDS:
        mode = UnluckyRandom(value)
        candidate = Candidate("random", what, lambda: batch, "possible")
        yield Draw(candidate, _given(mode), mode, each)
    for seed in range(1, SEEDS + 1):
        yield _other(batch, seed)
    for own in batches[:_OWN]:
        memory = Candidate(
            "memory", "memory that is used and was never written", _given(own), "likely",
            "fresh memory holds whatever was there before: NaN and Inf now and then",
        )  # fmt: skip
        yield Draw(memory, unwritten_memory)


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
