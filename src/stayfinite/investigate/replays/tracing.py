"""Helpers for traced replays: the slice from a symptom, and eager models."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...locate.modules import name_modules
from ...locate.slice import Origin, find_origin
from ...locate.trace import OpTrace
from ...numerics.health import badness
from ..body.copies import clones

__all__ = ["eager_stance", "module_names", "symptom_origin"]


class _Names(dict[int, str]):
    """Names by id; a replay's copy has the name of its original."""

    def get(self, key: int, default: Any = None) -> Any:
        return super().get(clones.get(key, key), default)


def module_names(roots: Mapping[str, nn.Module]) -> dict[int, str]:
    """Dotted paths of the models' modules, for a trace."""
    return _Names(name_modules(roots))


def symptom_origin(trace: OpTrace, tensors: Iterable[Tensor]) -> Origin | None:
    """Find the origin, with the trace paused so that it does not record this."""
    trace.is_paused = True
    try:
        with torch.utils._python_dispatch._disable_current_modes():
            return find_origin(trace, [t for t in tensors if badness(t)])
    finally:
        trace.is_paused = False


@contextlib.contextmanager
def eager_stance() -> Iterator[None]:
    """Run compiled models operator by operator during a replay.

    If a whole step is compiled, it is inside its compiled region when it is investigated. torch cannot change the stance there, so
    the region is left first and entered again afterwards.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    from torch._C._dynamo.eval_frame import set_eval_frame

    region = set_eval_frame(None)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        set_eval_frame(region)
