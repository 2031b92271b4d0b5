"""Many tensors of one file, measured side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from ..records import TensorStats
from .files import Blob
from .geometry import Layout
from .limits import FileFault
from .measure import (
    BLOCK_BYTES,
    Elements,
    Extremes,
    Probe,
    conclude,
    extremes,
    measure,
    merge_extremes,
    needs_detail,
)
from .pool import shared_pool

__all__ = ["Waiting", "measure_all"]

_INLINE_BELOW = 8 << 20
_BATCH_BYTES = 32 << 20
_BATCH_PIECES = 64

Outcome = tuple[TensorStats, bool] | FileFault


@dataclass(slots=True)
class Waiting:
    """A tensor that is to be measured."""

    key: object
    slot: int
    blob: Blob
    layout: Layout
    elements: Elements
    for_flood: bool

    @property
    def num_bytes(self) -> int:
        return self.layout.num_elements * self.elements.itemsize


Piece = tuple[int, Layout]
"""(number of the tensor, the part of it)"""


def measure_all(jobs: list[Waiting], probe: Probe) -> list[Outcome]:
    """The statistics of all, in order; small files without any thread."""
    if sum(j.num_bytes for j in jobs) < _INLINE_BELOW:
        return [_whole(j, probe) for j in jobs]
    pool = shared_pool()
    parts: list[list[Extremes | FileFault]] = [[] for _ in jobs]
    batches = list(_batches(jobs))
    for batch, found in zip(batches, pool.map(partial(_look, jobs, probe), batches)):
        for (number, _), outcome in zip(batch, found):
            parts[number].append(outcome)
    outcomes = [_join(job, part, probe) for job, part in zip(jobs, parts)]
    again = [i for i, outcome in enumerate(outcomes) if outcome is None]
    for i, second in zip(again, pool.map(lambda i: _whole(jobs[i], probe, parts[i]), again)):
        outcomes[i] = second
    return [o for o in outcomes if o is not None]


def _batches(jobs: list[Waiting]) -> Iterator[list[Piece]]:
    """Pieces of large tensors one by one, small tensors many at a time."""
    batch: list[Piece] = []
    size = 0
    for number, job in enumerate(jobs):
        for piece in _pieces(job):
            batch.append((number, piece))
            size += piece.num_elements * job.elements.itemsize
            if size >= _BATCH_BYTES or len(batch) >= _BATCH_PIECES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _pieces(job: Waiting) -> Iterator[Layout]:
    layout = job.layout
    step = max(1, BLOCK_BYTES // job.elements.itemsize)
    is_dense = len(layout.dims) == 1 and layout.dims[0][1] == 1
    if not is_dense or layout.num_elements <= step or job.elements.is_eight_bit_float:
        yield layout
        return
    for at in range(0, layout.num_elements, step):
        count = min(step, layout.num_elements - at)
        yield Layout(layout.offset + at, (count,), (1,), ((count, 1),), False)


def _look(jobs: list[Waiting], probe: Probe, batch: list[Piece]) -> list[Extremes | FileFault]:
    found: list[Extremes | FileFault] = []
    for number, piece in batch:
        job = jobs[number]
        if job.elements.is_eight_bit_float:
            found.append((0.0, 0.0, False))  # its histogram tells everything later
            continue
        try:
            found.append(extremes(job.blob, piece, job.elements, probe, job.for_flood))
        except FileFault as e:
            found.append(e)
    return found


def _join(job: Waiting, parts: list[Extremes | FileFault], probe: Probe) -> Outcome | None:
    """The outcome from the pieces, None when the tensor must be looked at again."""
    good: list[Extremes] = []
    for part in parts:
        if isinstance(part, FileFault):
            return part
        good.append(part)
    found = merge_extremes(good)
    if job.elements.is_eight_bit_float or needs_detail(found, job.elements, probe):
        return None
    return conclude(found, job.blob, job.layout, job.elements, probe)


def _whole(job: Waiting, probe: Probe, parts: list[Extremes | FileFault] | None = None) -> Outcome:
    try:
        if parts is None or job.elements.is_eight_bit_float:
            return measure(job.blob, job.layout, job.elements, probe, for_flood=job.for_flood)
        found = merge_extremes([p for p in parts if not isinstance(p, FileFault)])
        return conclude(found, job.blob, job.layout, job.elements, probe)
    except FileFault as e:
        return e
