"""Random numbers at the ends of their range: a long run draws them, a short test does not."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .layers import ask, has_scaler
from .probes import Probe, Seen, Subject

__all__ = ["ENDS", "UnluckyRandom", "try_end"]

ENDS = {
    "smallest": 0.0,
    "largest": 1 - 2.0**-24,
}
"""The ends of what `torch.rand` gives in float32: each comes once in 16 million numbers. The largest
is rounded to 1 by half precision, and so is one number of 512 in bfloat16."""


class UnluckyRandom(TorchFunctionMode):
    """The first number of every `torch.rand` and `torch.rand_like` is this one.

    >>> with UnluckyRandom(0.0) as mode:
    ...     x = torch.rand(3)
    >>> float(x[0]), bool(x[1] > 0), mode.num_calls
    (0.0, True, 1)
    """

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value
        self.num_calls = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.rand, torch.rand_like) and isinstance(result, Tensor) and result.numel():
            self.num_calls += 1
            with torch.no_grad():
                result.view(-1)[0] = self.value
        return result


def try_end(subject: Subject, end: str) -> Generator[Probe, Seen, tuple[Seen, int]]:
    """What a step does with this unlucky number, and how often one was drawn."""
    batch = subject.batches[0]
    name = f"the {end} random number"
    with UnluckyRandom(ENDS[end]) as mode:
        seen = yield from ask(subject, Probe(batch=batch, name=name))
        if seen.error is None and not seen.is_finite:
            scale = 1.0 if has_scaler(subject) else None
            traced = yield Probe(batch=batch, name=f"{name}, traced", trace=True, scale=scale)
            seen.location = traced.location
    return seen, mode.num_calls
