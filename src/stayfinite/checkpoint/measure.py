"""The health of tensors in mapped bytes: one pass at memory speed, a second look at what is bad."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..records import TensorStats
from .files import Blob
from .geometry import Block, Layout

__all__ = [
    "Elements",
    "Extremes",
    "Probe",
    "conclude",
    "dtype_of",
    "extremes",
    "measure",
    "merge_extremes",
    "needs_detail",
    "typed_blocks",
]

BLOCK_BYTES = 32 << 20
"""Large enough for the full memory speed, small enough to copy where bytes must be swapped."""
DETAIL_ELEMENTS = 1 << 20
_SAMPLE = 64

_VIEWED_AS = {
    "bool": torch.uint8,
    "qint8": torch.int8,
    "quint8": torch.uint8,
    "qint32": torch.int32,
    "quint4x2": torch.uint8,
    "quint2x4": torch.uint8,
}
_WIDENED_TO = {torch.uint16: torch.int32, torch.uint32: torch.int64}


@dataclass(frozen=True)
class Elements:
    """How the elements of a dtype are looked at."""

    name: str
    stored: torch.dtype
    """What the bytes are viewed as."""
    itemsize: int
    components: int = 1
    """2 for complex numbers."""
    is_float: bool = False
    is_eight_bit_float: bool = False
    tiny: float = 0.0
    """The smallest normal number of a float."""
    log2_max: float = 0.0


@dataclass
class Probe:
    """What is asked of a scan, and heard of it, while it runs."""

    on_bytes: Callable[[int], None] | None = None
    check: Callable[[], None] | None = None
    """Raises to stop the scan."""
    is_full: bool = False
    """Count zeros and subnormals and take the mean of every tensor, not only of bad ones."""
    scanned_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def advance(self, blob: Blob, num_bytes: int) -> None:
        with self._lock:
            self.scanned_bytes += num_bytes
        if self.on_bytes is not None:
            self.on_bytes(num_bytes)
        if self.check is not None:
            self.check()
        blob.check_length()  # last, right before the bytes are touched


_ELEMENTS: dict[str, Elements | None] = {}


def dtype_of(name: str) -> Elements | None:
    """How to look at a dtype, or None when torch has none of that name.

    >>> dtype_of("bfloat16").itemsize, dtype_of("complex64").components, dtype_of("float7")
    (2, 2, None)
    """
    if name not in _ELEMENTS:
        elements = _make_elements(name)
        if elements is not None and elements.is_float:
            limits = torch.finfo(elements.stored)
            elements = replace(elements, tiny=limits.tiny, log2_max=math.log2(limits.max))
        _ELEMENTS[name] = elements
    return _ELEMENTS[name]


def _make_elements(name: str) -> Elements | None:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        return None
    size = dtype.itemsize
    if name.startswith("float8"):
        return Elements(name, dtype, size, is_float=True, is_eight_bit_float=True)
    if dtype.is_complex:
        part = {4: torch.float16, 8: torch.float32, 16: torch.float64}[size]
        return Elements(name, part, size, components=2, is_float=True)
    if dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        return Elements(name, dtype, size, is_float=True)
    if name in _VIEWED_AS:
        return Elements(name, _VIEWED_AS[name], size)
    plain = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(size)
    is_integer = name.startswith(("int", "uint")) and name.lstrip("uint") in ("8", "16", "32", "64")
    if is_integer:
        return Elements(name, dtype, size)
    return Elements(name, plain, size) if plain else None


def typed_blocks(
    blob: Blob, layout: Layout, elements: Elements, at_most: int
) -> Iterator[tuple[Block, Tensor]]:
    """The tensor's elements as flat torch tensors over the mapped bytes, a block at a time."""
    data = blob.open()
    width = elements.itemsize
    swap = blob.is_big_endian and elements.stored.itemsize > 1
    if len(layout.dims) == 1 and layout.dims[0][1] == 1 and 0 < layout.dims[0][0] <= at_most:
        count = layout.dims[0][0]
        raw = data[layout.offset * width : (layout.offset + count) * width]
        yield Block(layout.offset, (count,), (1,)), _from_bytes(raw, elements, swap)
        return
    for block in layout.blocks(at_most):
        span = 1 + sum((n - 1) * s for n, s in zip(block.sizes, block.strides))
        raw = data[block.start * width : (block.start + span) * width]
        flat = _from_bytes(raw, elements, swap)
        if not block.is_dense:
            c = elements.components
            strides = tuple(s * c for s in block.strides)
            shape = (*block.sizes, c) if c > 1 else block.sizes
            flat = flat.as_strided(shape, (*strides, 1) if c > 1 else strides).reshape(-1)
        yield block, flat


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


def measure(
    blob: Blob, layout: Layout, elements: Elements, probe: Probe, *, for_flood: bool = False
) -> tuple[TensorStats, bool]:
    """The statistics of one tensor, and (`for_flood`) whether a sample of it is mostly subnormal."""
    if elements.is_eight_bit_float:
        return _measure_histogram(blob, layout, elements, probe), False
    found = extremes(blob, layout, elements, probe, for_flood)
    return conclude(found, blob, layout, elements, probe)


def merge_extremes(parts: list[Extremes]) -> Extremes:
    """The extremes of a tensor from those of its pieces."""
    if any(low != low for low, _, _ in parts):
        return math.nan, math.nan, False
    return min(p[0] for p in parts), max(p[1] for p in parts), any(p[2] for p in parts)


def needs_detail(found: Extremes, elements: Elements, probe: Probe) -> bool:
    """Whether a tensor must be read a second time."""
    low, high, is_flooded = found
    is_bad = not -math.inf < low <= high < math.inf and (low <= high or low != low)
    return elements.is_float and (is_bad or is_flooded or probe.is_full)


def conclude(
    found: Extremes, blob: Blob, layout: Layout, elements: Elements, probe: Probe
) -> tuple[TensorStats, bool]:
    """The statistics of a tensor whose extremes are known; a second look if they are bad."""
    low, high, is_flooded = found
    count = math.prod(layout.size)
    if count and needs_detail(found, elements, probe):
        base = TensorStats(shape=layout.size, dtype=elements.name, num_elements=count)
        return _detail(base, blob, layout, elements, probe), is_flooded
    if count == 0 or low > high:
        return TensorStats(shape=layout.size, dtype=elements.name, num_elements=count), False
    top = max(-low, high)
    figures = TensorStats(
        shape=layout.size,
        dtype=elements.name,
        num_elements=count,
        min=low,
        max=high,
        abs_max=top,
        num_zero=count if top == 0 else 0,
        headroom_bits=_headroom(elements, top),
    )
    return figures, False


def extremes(
    blob: Blob, layout: Layout, elements: Elements, probe: Probe, for_flood: bool
) -> Extremes:
    """Smallest and largest value; both NaN as soon as a block holds one."""
    low, high, is_flooded = math.inf, -math.inf, False
    per_block = max(1, BLOCK_BYTES // elements.itemsize)
    tiny = elements.tiny if for_flood else 0.0
    has_range = elements.stored is not torch.uint64
    for block, flat in typed_blocks(blob, layout, elements, per_block):
        probe.advance(blob, block.num_elements * elements.itemsize)
        if not has_range:
            continue
        if elements.stored in _WIDENED_TO:
            flat = flat.to(_WIDENED_TO[elements.stored])
        a, b = torch.aminmax(flat)
        lo, hi = a.item(), b.item()
        if lo != lo or hi != hi:
            return math.nan, math.nan, False
        low, high = min(low, lo), max(high, hi)
        if tiny and not is_flooded:
            sample = flat[:: max(1, flat.numel() // _SAMPLE)].tolist()
            is_flooded = sum(0.0 < abs(v) < tiny for v in sample) * 4 > len(sample)
    return float(low), float(high), is_flooded


def _detail(
    base: TensorStats, blob: Blob, layout: Layout, elements: Elements, probe: Probe
) -> TensorStats:
    """Everything about a tensor, in small pieces."""
    tally = _Tally(elements.tiny)
    first: tuple[int, ...] | None = None
    for block, flat in typed_blocks(blob, layout, elements, DETAIL_ELEMENTS):
        blob.check_length()
        if probe.check is not None:
            probe.check()
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
    """The smallest index among the bad elements of this block and what was found before."""
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
    """8-bit floats: 256 possible values, so one histogram tells everything exactly."""
    counts = torch.zeros(256, dtype=torch.int64)
    values = torch.arange(256, dtype=torch.uint8).view(elements.stored).to(torch.float32)
    bad_bytes = ~torch.isfinite(values)
    octets = Elements(elements.name, torch.uint8, 1)
    first: tuple[int, ...] | None = None
    for block, flat in typed_blocks(blob, layout, octets, DETAIL_ELEMENTS * 4):
        probe.advance(blob, block.num_elements)
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
