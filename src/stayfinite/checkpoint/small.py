"""Measures many small tensors in one pass: neighbors of one dtype are read together.

A single tensor costs some microseconds in addition to its bytes. A checkpoint has thousands of biases and norms, and a hostile
file may have a hundred thousand tensors of four elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, nan
from typing import Protocol

import torch

from .files import Blob
from .limits import FileFault
from .measure import Elements, Extremes, Probe, sample_is_flooded

__all__ = ["is_small", "measure_small"]

_MAX_BYTES = 1 << 16
_MAX_GAP = 1 << 12
_MAX_STRETCH = 1 << 22
_REDUCED_BELOW = 256
"""Up to this many elements, one reduction over all segments is faster than a call for each."""
_REDUCED = (torch.float32, torch.float64, torch.bfloat16)


class SmallJob(Protocol):
    """What is asked of a dense tensor here."""

    blob: Blob
    count: int
    begin: int
    end: int
    elements: Elements
    for_flood: bool


def is_small(job: SmallJob) -> bool:
    """Whether a dense tensor is better read together with others."""
    blob, elements = job.blob, job.elements
    return (
        job.end - job.begin <= _MAX_BYTES
        and blob.mapping is not None
        and elements.is_float
        and not blob.is_big_endian
        and not elements.is_eight_bit_float
        and job.begin % elements.stored.itemsize == 0
    )


def measure_small(jobs: Sequence[SmallJob], probe: Probe) -> list[Extremes | FileFault]:
    """The extremes of each, in the order given."""
    found: list[Extremes | FileFault] = [(inf, -inf, False)] * len(jobs)
    order = sorted(range(len(jobs)), key=lambda i: jobs[i].begin)
    for stretch in _stretches(jobs, order):
        first = jobs[stretch[0]]
        begin, end = first.begin, jobs[stretch[-1]].end
        file = first.blob.file
        probe.advance(sum([jobs[i].end - jobs[i].begin for i in stretch]))
        try:
            if file is not None:
                file.need(begin, end)
        except FileFault as e:
            for i in stretch:
                found[i] = e
            continue
        try:
            _read_stretch(jobs, stretch, begin, end, found)
        finally:
            if file is not None:
                file.done(begin, end)
    return found


def _stretches(jobs: Sequence[SmallJob], order: list[int]) -> Iterator[list[int]]:
    """Neighbors of one dtype, none overlapping, with little between them."""
    stretch: list[int] = []
    last: SmallJob | None = None
    limit = 0
    for i in order:
        job = jobs[i]
        if not job.count:
            continue
        if last is not None:
            gap = job.begin - last.end
            is_near = 0 <= gap <= _MAX_GAP and job.end <= limit
            is_alike = job.elements is last.elements and job.blob.mapping is last.blob.mapping
            if not (is_near and is_alike and gap % job.elements.stored.itemsize == 0):
                yield stretch
                stretch, last = [], None
        if last is None:
            limit = job.begin + _MAX_STRETCH
        stretch.append(i)
        last = job
    if stretch:
        yield stretch


def _read_stretch(
    jobs: Sequence[SmallJob],
    stretch: list[int],
    begin: int,
    end: int,
    found: list[Extremes | FileFault],
) -> None:
    elements = jobs[stretch[0]].elements
    mapping = jobs[stretch[0]].blob.mapping
    assert mapping is not None
    width = elements.stored.itemsize
    flat = torch.frombuffer(mapping[begin:end], dtype=elements.stored)
    if flat.data_ptr() % width:
        flat = torch.frombuffer(bytearray(mapping[begin:end]), dtype=elements.stored)
    spans = [((jobs[i].begin - begin) // width, (jobs[i].end - begin) // width) for i in stretch]
    can_reduce = elements.stored in _REDUCED
    tiny = [k for k, (a, b) in enumerate(spans) if can_reduce and b - a <= _REDUCED_BELOW]
    others = [k for k, (a, b) in enumerate(spans) if not (can_reduce and b - a <= _REDUCED_BELOW)]
    lows, highs = [0.0] * len(spans), [0.0] * len(spans)
    for some, (low, high) in (
        (tiny, _reduced(flat, [spans[k] for k in tiny])),
        (others, _one_by_one(flat, [spans[k] for k in others])),
    ):
        for k, a, b in zip(some, low, high):
            lows[k], highs[k] = a, b
    for k, i in enumerate(stretch):
        low_k, high_k = lows[k], highs[k]
        if low_k != low_k or high_k != high_k:
            found[i] = (nan, nan, False)
            continue
        job = jobs[i]
        a, b = spans[k]
        is_flooded = job.for_flood and sample_is_flooded(flat[a:b], elements.tiny)
        found[i] = (low_k, high_k, is_flooded)


def _reduced(flat: torch.Tensor, spans: list[tuple[int, int]]) -> tuple[list[float], list[float]]:
    """One reduction over all; gaps between tensors are segments that are ignored."""
    if not spans:
        return [], []
    bounds = [edge for span in spans for edge in span]
    offsets = torch.tensor(bounds, dtype=torch.int64)
    low = torch.segment_reduce(flat, "min", offsets=offsets, unsafe=True)
    high = torch.segment_reduce(flat, "max", offsets=offsets, unsafe=True)
    return low[::2].tolist(), high[::2].tolist()


def _one_by_one(
    flat: torch.Tensor, spans: list[tuple[int, int]]
) -> tuple[list[float], list[float]]:
    if not spans:
        return [], []
    pairs = [torch.aminmax(flat[a:b]) for a, b in spans]
    low = torch.stack([p[0] for p in pairs])
    high = torch.stack([p[1] for p in pairs])
    return low.tolist(), high.tolist()
