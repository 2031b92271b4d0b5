"""Fills the shadow memory with the box before the first operator."""

from __future__ import annotations

import torch
from torch import Tensor

from ..tape import Capture, Part, Ref
from .box import Box
from .rounding import rounded
from .shadow import Shadows

__all__ = ["UNKNOWN_SOURCE", "Seeds"]

UNKNOWN_SOURCE = -1
"""`after` for memory with unknown values."""


class Seeds:
    """Fills the shadow of a storage at its first read, and the parameters again in each step."""

    def __init__(self, capture: Capture, box: Box, shadows: Shadows) -> None:
        self._sources = capture.sources
        self._box = box
        self._shadows = shadows
        self._parts: dict[int, list[Part]] = {}
        for part in capture.parts:
            self._parts.setdefault(part.ref.storage, []).append(part)

    def fill(self, ref: Ref, step: int) -> None:
        """The shadow of memory that no operator has made."""
        memory = self._shadows.allocate(ref)
        source = self._sources.get(ref.storage)
        if source is None or source.values is None or source.values.is_complex():
            memory.after = UNKNOWN_SOURCE
            memory.lo.fill_(-1.0)
            memory.hi.fill_(1.0)
            return
        if source.ref.length != ref.length:  # read as another dtype
            memory.after = UNKNOWN_SOURCE
            return
        values = source.values.cpu().double()  # not every device has float64
        if bool(values.isnan().any()):
            memory.after = UNKNOWN_SOURCE
            values = torch.nan_to_num(values)
        memory.lo.copy_(values)
        memory.hi.copy_(values)
        finite = values[values.isfinite()]
        if finite.numel():
            memory.seen = (float(finite.min()), float(finite.max()))
        memory.is_exact, memory.has_inf = True, finite.numel() < values.numel()
        self._apply(ref.storage, step)

    def begin_step(self, step: int) -> None:
        """The weights of every step are those of the box."""
        for storage, parts in self._parts.items():
            if any(p.kind == "parameter" for p in parts) and storage in self._sources:
                ref = self._sources[storage].ref
                if self._shadows.has(ref):
                    version = self._shadows.of(ref).version
                    self.fill(ref, step)
                    self._shadows.of(ref).version = version + 1

    def _apply(self, storage: int, step: int) -> None:
        for part in self._parts.get(storage, ()):
            if part.step > step:
                continue
            memory = self._shadows.of(part.ref)
            lo, hi = (
                t.as_strided(part.ref.shape, part.ref.stride, part.ref.offset)
                for t in (memory.lo, memory.hi)
            )
            if part.kind == "batch" and part.name in self._box.data:
                self._set_range(lo, hi, self._box.data[part.name])
                memory.is_exact = memory.is_exact and bool((lo == hi).all())
                memory.words = part.name
                memory.parts = memory.parts | {part.name}
            elif part.kind == "batch":
                memory.words = part.name
                memory.parts = memory.parts | {part.name}
            elif part.kind == "parameter":
                self._set_reach(lo, hi, part)
                memory.is_exact = memory.is_exact and not self._box.weights.get(part.name)
                memory.words = memory.words or f"the weight {part.name}"

    def _set_range(self, lo: Tensor, hi: Tensor, pair: tuple[float, float]) -> None:
        # An infinite number in the batch is there on purpose and stays.
        lo.copy_(torch.where(lo.isinf(), lo, torch.full_like(lo, pair[0])))
        hi.copy_(torch.where(hi.isinf(), hi, torch.full_like(hi, pair[1])))

    def _set_reach(self, lo: Tensor, hi: Tensor, part: Part) -> None:
        reach = float(self._box.weights.get(part.name, 0.0))
        if reach:
            lo.copy_(rounded(lo - reach, part.ref.dtype))
            hi.copy_(rounded(hi + reach, part.ref.dtype))
