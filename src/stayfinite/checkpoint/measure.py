"""Measures the health of mapped tensors: one fast pass, and a second one for bad tensors."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..records import TensorStats
from .dtypes import Elements, dtype_of
from .files import Blob
from .geometry import Block, Layout
from .ordinary import is_all_ordinary, range_of_non_negative

__all__ = [
    "NO_RANGE",
    "Asked",
    "Elements",
    "Extremes",
    "Probe",
    "conclude",
    "dtype_of",
    "extremes",
    "measure",
    "merge_extremes",
    "needs_detail",
    "plain_stats",
    "sample_is_flooded",
    "typed_blocks",
]

DETAIL_ELEMENTS = 1 << 20
_SAMPLE = 64
_FEW = 16
"""None subnormal among this many: one in 65,000 half-subnormal tensors would pass."""

_LARGE = 1 << 20
"""Bytes from which a tensor's range is not found on the way."""

_WIDENED_TO = {torch.uint16: torch.int32, torch.uint32: torch.int64}


@dataclass(frozen=True)
class Asked:
    """How much to measure in healthy tensors."""

    has_ranges: bool = False
    """Also the smallest and the largest value of large tensors, which takes half as long again."""
    is_full: bool = False
    """Also zeros, subnormals and the mean of every tensor."""


@dataclass
class Probe:
    """The options and the progress callbacks of a running scan."""

    on_bytes: Callable[[int], None] | None = None
    check: Callable[[], None] | None = None
    """Raise to stop the scan."""
    asked: Asked = Asked()
    scanned_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def advance(self, num_bytes: int) -> None:
        with self._lock:
            self.scanned_bytes += num_bytes
        if self.on_bytes is not None:
            self.on_bytes(num_bytes)
        if self.check is not None:
            self.check()


def typed_blocks(
    blob: Blob,
    layout: Layout,
    elements: Elements,
    at_most: int,
    is_wanted: Callable[[int], bool] = lambda number: True,
) -> Iterator[tuple[Block, Tensor]]:
    """The tensor's elements as flat torch tensors over the mapped bytes, block by block.

    `is_wanted` is called with the number of each block; other blocks are not read.
    """
    data = blob.open()
    width = elements.itemsize
    swap = blob.is_big_endian and elements.stored.itemsize > 1
    for number, block in enumerate(layout.blocks(at_most)):
        if not is_wanted(number):
            continue
        span = 1 + sum((n - 1) * s for n, s in zip(block.sizes, block.strides))
        start, end = block.start * width, (block.start + span) * width
        blob.need(start, end)
        try:
            flat = _from_bytes(data[start:end], elements, swap)
            if not block.is_dense:
                c = elements.components
                strides = tuple(s * c for s in block.strides)
                shape = (*block.sizes, c) if c > 1 else block.sizes
                flat = flat.as_strided(shape, (*strides, 1) if c > 1 else strides).reshape(-1)
            yield block, flat
        finally:
            blob.done(start, end)


def _from_bytes(raw: memoryview, elements: Elements, swap: bool) -> Tensor:
    stored = elements.stored
    if swap:
        octets = torch.frombuffer(raw, dtype=torch.uint8).reshape(-1, stored.itemsize)
        return octets.flip(1).reshape(-1).view(stored)
    tensor = torch.frombuffer(raw, dtype=stored)
    if tensor.data_ptr() % stored.itemsize:
        tensor = torch.frombuffer(bytearray(raw), dtype=stored)
    return tensor


Extremes = tuple[float, float, bool]
"""Smallest and largest value (NaN if there is one), and whether a sample is mostly subnormal."""

NO_RANGE: Extremes = (math.inf, -math.inf, False)
"""Of a tensor without elements, and of one whose values are ordinary and were not compared."""


def measure(
    blob: Blob,
    layout: Layout,
    elements: Elements,
    probe: Probe,
    *,
    for_flood: bool = False,
    has_range: bool = True,
) -> tuple[TensorStats, bool]:
    """The statistics of one tensor, and (`for_flood`) whether a sample of it is mostly subnormal."""
    if elements.is_eight_bit_float:
        return _measure_histogram(blob, layout, elements, probe), False
    found = extremes(blob, layout, elements, probe, for_flood, has_range)
    return conclude(found, blob, layout, elements, probe)


def merge_extremes(parts: list[Extremes]) -> Extremes:
    """Combine the extremes of a tensor's pieces."""
    if any(low != low for low, _, _ in parts):
        return math.nan, math.nan, False
    return min(p[0] for p in parts), max(p[1] for p in parts), any(p[2] for p in parts)


def needs_detail(found: Extremes, elements: Elements, probe: Probe) -> bool:
    """Whether a tensor must be read a second time."""
    low, high, is_flooded = found
    is_bad = not -math.inf < low <= high < math.inf and (low <= high or low != low)
    return elements.is_float and (is_bad or is_flooded or probe.asked.is_full)


def conclude(
    found: Extremes, blob: Blob, layout: Layout, elements: Elements, probe: Probe
) -> tuple[TensorStats, bool]:
    """The statistics of a tensor with known extremes; reads it again if they are bad."""
    is_flooded = found[2]
    count = math.prod(layout.size)
    if count and needs_detail(found, elements, probe):
        base = TensorStats(shape=layout.size, dtype=elements.name, num_elements=count)
        return _detail(base, blob, layout, elements, probe), is_flooded
    return plain_stats(layout.size, count, elements, found), False


def plain_stats(
    size: tuple[int, ...], count: int, elements: Elements, found: Extremes
) -> TensorStats:
    """The statistics of a tensor that needs no second pass."""
    low, high, _ = found
    if count == 0 or low > high:
        return TensorStats(shape=size, dtype=elements.name, num_elements=count)
    top = max(-low, high)
    return TensorStats(
        shape=size,
        dtype=elements.name,
        num_elements=count,
        min=low,
        max=high,
        abs_max=top,
        num_zero=count if top == 0 else 0,
        headroom_bits=_headroom(elements, top),
    )


def extremes(
    blob: Blob,
    layout: Layout,
    elements: Elements,
    probe: Probe,
    for_flood: bool,
    has_range: bool = True,
) -> Extremes:
    """Smallest and largest value; both NaN if a block has one.

    Without `has_range` they are omitted for blocks of ordinary values.
    """
    low, high, is_flooded = math.inf, -math.inf, False
    tiny = elements.tiny if for_flood else 0.0
    can_compare = elements.stored is not torch.uint64
    per_block = max(1, blob.block_bytes // elements.itemsize)
    is_plain = elements.stored not in _WIDENED_TO and can_compare and not blob.is_big_endian
    if is_plain and layout.is_dense and 0 < layout.num_elements <= per_block:
        return _dense_extremes(blob, layout, elements, probe, tiny, has_range)
    for block, flat in typed_blocks(blob, layout, elements, per_block):
        probe.advance(block.num_elements * elements.itemsize)
        blob.check_length()  # last, right before the bytes are touched
        if not can_compare:
            continue
        if elements.stored in _WIDENED_TO:
            flat = flat.to(_WIDENED_TO[elements.stored])
        a, b = torch.aminmax(flat)
        lo, hi = a.item(), b.item()
        if lo != lo or hi != hi:
            return math.nan, math.nan, False
        low, high = min(low, lo), max(high, hi)
        if tiny and not is_flooded:
            is_flooded = sample_is_flooded(flat, tiny)
    return float(low), float(high), is_flooded


def _dense_extremes(
    blob: Blob, layout: Layout, elements: Elements, probe: Probe, tiny: float, has_range: bool
) -> Extremes:
    """The same for one block of a dense tensor, which is what most tensors are."""
    width = elements.itemsize
    start, end = layout.offset * width, (layout.offset + layout.num_elements) * width
    data = blob.open()
    probe.advance(end - start)
    blob.need(start, end)
    try:
        flat = _from_bytes(data[start:end], elements, False)
        if not has_range and end - start >= _LARGE and is_all_ordinary(flat, elements.tiny):
            return NO_RANGE
        known = range_of_non_negative(flat)
        low, high = known or (float(v) for v in torch.aminmax(flat))
        if low != low or high != high:
            return math.nan, math.nan, False
        return low, high, bool(tiny) and sample_is_flooded(flat, tiny)
    finally:
        blob.done(start, end)


def sample_is_flooded(flat: Tensor, tiny: float) -> bool:
    """Whether more than a quarter of a sample is subnormal, so that all should be counted."""
    few = flat[:: max(1, flat.numel() // _FEW)].tolist()
    if not any(0.0 < abs(v) < tiny for v in few):
        return False
    sample = flat[:: max(1, flat.numel() // _SAMPLE)].tolist()
    return bool(sum(0.0 < abs(v) < tiny for v in sample) * 4 > len(sample))


def _detail(
    base: TensorStats, blob: Blob, layout: Layout, elements: Elements, probe: Probe
) -> TensorStats:
    """Everything about a tensor, in small pieces."""
    tally = _Tally(elements.tiny)
    first: tuple[int, ...] | None = None
    for block, flat in typed_blocks(blob, layout, elements, DETAIL_ELEMENTS):
        if probe.check is not None:
            probe.check()
            blob.check_length()
        bad = tally.add(flat)
        if bad is not None:
            first = _earliest(first, bad, block, layout, elements)
    top = None if tally.low > tally.high else max(abs(tally.low), abs(tally.high))
    return replace(
        base,
        num_nan=tally.num_nan,
        num_posinf=tally.num_posinf,
        num_neginf=tally.num_neginf,
        num_zero=tally.num_zero,
        num_subnormal=tally.num_subnormal,
        min=None if top is None else tally.low,
        max=None if top is None else tally.high,
        mean=tally.total / tally.num_finite if tally.num_finite else None,
        abs_max=top,
        headroom_bits=_headroom(elements, top),
        first_bad=first,
    )


class _Tally:
    def __init__(self, tiny: float) -> None:
        self.tiny = tiny
        self.low, self.high, self.total = math.inf, -math.inf, 0.0
        self.num_nan = self.num_posinf = self.num_neginf = 0
        self.num_zero = self.num_subnormal = self.num_finite = 0

    def add(self, flat: Tensor) -> Tensor | None:
        """Count a block; the positions of its non-finite elements, None when there are none."""
        is_ok = torch.isfinite(flat)
        num_bad = flat.numel() - int(is_ok.sum())
        finite = flat if not num_bad else flat[is_ok]
        if finite.numel():
            a, b = torch.aminmax(finite)
            self.low, self.high = min(self.low, a.item()), max(self.high, b.item())
            self.total += finite.sum(dtype=torch.float64).item()
            self.num_finite += finite.numel()
            size = finite.abs()
            zeros = int((size == 0).sum())
            self.num_zero += zeros
            self.num_subnormal += int((size < self.tiny).sum()) - zeros
        if not num_bad:
            return None
        self.num_nan += int(torch.isnan(flat).sum())
        self.num_posinf += int(torch.isposinf(flat).sum())
        self.num_neginf += int(torch.isneginf(flat).sum())
        return torch.nonzero(~is_ok).reshape(-1)


def _earliest(
    first: tuple[int, ...] | None, bad: Tensor, block: Block, layout: Layout, elements: Elements
) -> tuple[int, ...] | None:
    """The smallest index among the bad elements of this block and the earlier ones."""
    local = torch.unique(bad // elements.components)
    positions = torch.full_like(local, block.start)
    for size, stride in zip(reversed(block.sizes), reversed(block.strides)):
        positions += (local % size) * stride
        local = local // size
    # The first in memory need not be the first by index: a transposed tensor has another order.
    candidates = [layout.index_of(int(p)) for p in _few(positions, layout)]
    found = [c for c in (first, *candidates) if c is not None]
    return min(found, default=None)


def _few(positions: Tensor, layout: Layout) -> list[int]:
    is_row_major = list(layout.stride) == sorted(layout.stride, reverse=True)
    if is_row_major:
        return [int(positions.min())]
    index = torch.zeros_like(positions)
    rest = positions - layout.offset
    order = sorted(range(len(layout.size)), key=lambda d: -layout.stride[d])
    row_major = [math.prod(layout.size[d + 1 :]) for d in range(len(layout.size))]
    for d in order:
        if layout.stride[d] and layout.size[d] > 1:
            at = torch.clamp(rest // layout.stride[d], max=layout.size[d] - 1)
            rest = rest - at * layout.stride[d]
            index += at * row_major[d]
    return [int(positions[int(index.argmin())])]


def _measure_histogram(blob: Blob, layout: Layout, elements: Elements, probe: Probe) -> TensorStats:
    """8-bit floats have 256 values, so a histogram is enough."""
    counts = torch.zeros(256, dtype=torch.int64)
    values = torch.arange(256, dtype=torch.uint8).view(elements.stored).to(torch.float32)
    bad_bytes = ~torch.isfinite(values)
    octets = Elements(elements.name, torch.uint8, 1)
    first: tuple[int, ...] | None = None
    for block, flat in typed_blocks(blob, layout, octets, DETAIL_ELEMENTS * 4):
        probe.advance(block.num_elements)
        blob.check_length()
        here = torch.bincount(flat, minlength=256)
        counts += here
        if int(here[bad_bytes].sum()):
            bad = torch.nonzero(bad_bytes[flat.to(torch.int64)]).reshape(-1)
            first = _earliest(first, bad, block, layout, octets)
    used = counts > 0
    finite = values[used & ~bad_bytes]
    magnitude = values.abs()
    tiny = elements.tiny
    base = TensorStats(
        shape=layout.size,
        dtype=elements.name,
        num_elements=math.prod(layout.size),
        num_nan=int(counts[torch.isnan(values)].sum()),
        num_posinf=int(counts[torch.isposinf(values)].sum()),
        num_neginf=int(counts[torch.isneginf(values)].sum()),
        num_zero=int(counts[values == 0].sum()),
        num_subnormal=int(counts[(magnitude > 0) & (magnitude < tiny)].sum()),
        first_bad=first,
    )
    if not finite.numel():
        return base
    low, high = finite.min().item(), finite.max().item()
    top = max(abs(low), abs(high))
    weighted = torch.where(bad_bytes, 0.0, values).to(torch.float64) * counts
    return replace(
        base,
        min=low,
        max=high,
        abs_max=top,
        mean=weighted.sum().item() / int(counts[~bad_bytes].sum()),
        headroom_bits=_headroom(elements, top),
    )


def _headroom(elements: Elements, top: float | None) -> float | None:
    if not elements.is_float or not top:
        return None
    return elements.log2_max - math.log2(top)
