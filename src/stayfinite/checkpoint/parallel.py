"""Measures the tensors of one file in parallel while the rest is still being read."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future

from ..records import TensorStats
from .files import Blob
from .geometry import Layout, row_major
from .limits import FileFault
from .measure import (
    NO_RANGE,
    Elements,
    Extremes,
    Probe,
    conclude,
    extremes,
    measure,
    merge_extremes,
    needs_detail,
    plain_stats,
)
from .pool import shared_pool
from .small import is_small, measure_small

__all__ = ["Measurer", "Outcome", "Waiting"]

_INLINE_BELOW = 8 << 20
_BATCH_BYTES = 64 << 20
_MAX_SMALL = 8192

Outcome = tuple[TensorStats, bool] | FileFault


class Waiting:
    """A tensor to be measured."""

    __slots__ = (
        "begin",
        "blob",
        "count",
        "elements",
        "end",
        "for_flood",
        "has_range",
        "key",
        "offset",
        "size",
        "strided",
    )

    def __init__(
        self,
        key: int,
        blob: Blob,
        offset: int,
        size: tuple[int, ...],
        elements: Elements,
        for_flood: bool,
        strided: Layout | None,
        has_range: bool = True,
    ) -> None:
        self.key = key
        """Its number in the file."""
        self.blob = blob
        self.offset = offset
        """Its first element in the storage."""
        self.size = size
        self.elements = elements
        self.for_flood = for_flood
        self.has_range = has_range
        """Whether its smallest and largest value are wanted even if nothing is wrong with it."""
        self.strided = strided
        """None for a dense tensor, which needs no more than the above."""
        self.count = strided.num_elements if strided is not None else math.prod(size)
        self.begin = blob.start + offset * elements.itemsize
        self.end = self.begin + self.count * elements.itemsize

    @property
    def layout(self) -> Layout:
        if self.strided is not None:
            return self.strided
        return Layout(self.offset, self.size, row_major(self.size), ((self.count, 1),))

    @property
    def num_bytes(self) -> int:
        return self.count * self.elements.itemsize


class Measurer:
    """Measures tensors as they are found, and passes the statistics to `deliver`.

    Large ones go to threads at once, in batches of about 64 MB; small ones are collected and measured together. A small file needs
    no thread.
    """

    def __init__(self, probe: Probe, deliver: Callable[[Waiting, Outcome], None]) -> None:
        self._probe = probe
        self._deliver = deliver
        self._small: list[Waiting] = []
        self._large: list[Waiting] = []
        self._num_bytes = 0
        self._running: list[tuple[list[Waiting], Future[list[Outcome]]]] = []

    def add(self, job: Waiting) -> None:
        if job.strided is None and is_small(job):
            self._small.append(job)
            if len(self._small) >= _MAX_SMALL:
                self._finish_small()
            return
        self._large.append(job)
        self._num_bytes += job.num_bytes
        if self._num_bytes >= _BATCH_BYTES:
            self._submit()

    def finish(self) -> None:
        """Measure the remaining tensors; everything is delivered when this returns."""
        if self._running or self._num_bytes >= _INLINE_BELOW:
            self._submit()
        self._finish_small()
        for job in self._large:
            self._deliver(job, _whole(job, self._probe))
        self._large = []
        for jobs, future in self._running:
            for job, outcome in zip(jobs, future.result()):
                self._deliver(job, outcome)
        self._running = []

    def stop(self) -> None:
        """Discard everything that threads are working on."""
        for _, future in self._running:
            future.cancel()
        for _, future in self._running:
            if not future.cancelled():
                future.exception()

    def _submit(self) -> None:
        for jobs in _batches(self._large):
            if len(jobs) == 1 and jobs[0].num_bytes > _BATCH_BYTES:
                self._submit_pieces(jobs[0])
            else:
                work = shared_pool().submit(_look, jobs, self._probe)
                self._running.append((jobs, work))
        self._large, self._num_bytes = [], 0

    def _submit_pieces(self, job: Waiting) -> None:
        """One very large tensor, in pieces; its last piece puts them together."""
        parts = [shared_pool().submit(_extremes, job, p, self._probe) for p in _pieces(job)]
        self._running.append(([job], _Joined(job, parts, self._probe)))

    def _finish_small(self) -> None:
        jobs, self._small = self._small, []
        for job, found in zip(jobs, measure_small(jobs, self._probe)):
            if isinstance(found, FileFault) or needs_detail(found, job.elements, self._probe):
                self._deliver(job, _concluded(job, found, self._probe))
            else:
                self._deliver(job, (plain_stats(job.size, job.count, job.elements, found), False))


class _Joined(Future[list[Outcome]]):
    """The result of a tensor that several threads measure in pieces."""

    def __init__(
        self, job: Waiting, parts: list[Future[Extremes | FileFault]], probe: Probe
    ) -> None:
        super().__init__()
        self._job, self._parts, self._probe = job, parts, probe

    def cancel(self) -> bool:
        outcomes = [part.cancel() for part in self._parts]
        return all(outcomes)

    def cancelled(self) -> bool:
        return all(part.cancelled() for part in self._parts)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        errors = [p.exception(timeout) for p in self._parts if not p.cancelled()]
        return next((e for e in errors if e is not None), None)

    def result(self, timeout: float | None = None) -> list[Outcome]:
        good: list[Extremes] = []
        for part in self._parts:
            found = part.result(timeout)
            if isinstance(found, FileFault):
                return [found]
            good.append(found)
        found = merge_extremes(good)
        if found != NO_RANGE and NO_RANGE in good and math.isfinite(found[1] - found[0]):
            return [_compared(self._job, self._probe)]
        return [_concluded(self._job, found, self._probe)]


def _batches(jobs: list[Waiting]) -> list[list[Waiting]]:
    """Neighbors together, about 64 MB each."""
    batches: list[list[Waiting]] = []
    size = _BATCH_BYTES
    for job in jobs:
        if size >= _BATCH_BYTES or job.num_bytes > _BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(job)
        size += job.num_bytes
    return batches


def _pieces(job: Waiting) -> list[Layout]:
    layout = job.layout
    step = max(1, _BATCH_BYTES // job.elements.itemsize)
    is_dense = len(layout.dims) == 1 and layout.dims[0][1] == 1
    if not is_dense or job.elements.is_eight_bit_float:
        return [layout]
    total = layout.num_elements
    return [
        Layout(layout.offset + at, (n,), (1,), ((n, 1),))
        for at in range(0, total, step)
        if (n := min(step, total - at))
    ]


def _extremes(job: Waiting, piece: Layout, probe: Probe) -> Extremes | FileFault:
    if job.elements.is_eight_bit_float:
        return 0.0, 0.0, False  # its histogram gives everything later
    try:
        return extremes(job.blob, piece, job.elements, probe, job.for_flood, job.has_range)
    except FileFault as e:
        return e


def _look(jobs: list[Waiting], probe: Probe) -> list[Outcome]:
    return [_whole(job, probe) for job in jobs]


def _whole(job: Waiting, probe: Probe) -> Outcome:
    try:
        return measure(
            job.blob,
            job.layout,
            job.elements,
            probe,
            for_flood=job.for_flood,
            has_range=job.has_range,
        )
    except FileFault as e:
        return e


def _compared(job: Waiting, probe: Probe) -> Outcome:
    """Some pieces are ordinary, some are not: the whole once more, with its range."""
    again = Probe(check=probe.check, asked=probe.asked)  # these bytes have been counted
    try:
        return measure(job.blob, job.layout, job.elements, again, for_flood=job.for_flood)
    except FileFault as e:
        return e


def _concluded(job: Waiting, found: Extremes | FileFault, probe: Probe) -> Outcome:
    if isinstance(found, FileFault):
        return found
    if job.elements.is_eight_bit_float:
        return _whole(job, probe)
    try:
        return conclude(found, job.blob, job.layout, job.elements, probe)
    except FileFault as e:
        return e
