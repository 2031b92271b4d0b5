"""What every traced run shares: the slice from its symptom, eager models, a watched step."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..locate.slice import Origin, find_origin
from ..locate.trace import OpTrace
from ..numerics.health import badness
from .state import TrainState

__all__ = ["eager_stance", "spoiling_step", "symptom_origin"]


def symptom_origin(trace: OpTrace, tensors: Iterable[Tensor]) -> Origin | None:
    """The slice, with the trace paused so that it does not watch itself."""
    trace.is_paused = True
    try:
        with torch.utils._python_dispatch._disable_current_modes():
            return find_origin(trace, [t for t in tensors if badness(t)])
    finally:
        trace.is_paused = False


def spoiling_step(trace: OpTrace, state: TrainState, step: Callable[[], Any]) -> Origin | None:
    """An optimizer step that makes the state bad, once more and watched."""
    trace.direction = "optimizer"
    with trace:
        step()
        with torch.utils._python_dispatch._disable_current_modes():
            bad = [t for _, _, t in state.bad_state()]
        return symptom_origin(trace, bad)


@contextlib.contextmanager
def eager_stance() -> Iterator[None]:
    """Compiled models run operator by operator during a replay."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
