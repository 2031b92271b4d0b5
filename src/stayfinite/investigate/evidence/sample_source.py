"""A data set and what makes batches of it: samples are fetched once more, where nobody can feel it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ...locate.frames import is_user_file
from ...patches.loaders import Indices, samples
from ...runtime.window import BatchRef
from ..body.access import RANDOM
from ..body.effects import class_member
from ..body.summary import Functions
from ..body.values import UNKNOWN, known

__all__ = ["SampleSource", "as_worker", "fetched", "is_felt", "source_behind", "worker_number"]


class SampleSource:
    """A data set and what makes batches of it; the loader itself may be gone already."""

    def __init__(self, dataset: Any, collate_fn: Any, num_workers: int) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.num_workers = num_workers


@contextlib.contextmanager
def as_worker(number: int | None, loader: SampleSource) -> Iterator[None]:
    """`get_worker_info`, by which a data set finds its share, answers as in that process."""
    before = worker._worker_info
    if number is not None:
        worker._worker_info = worker.WorkerInfo(
            id=number,
            num_workers=loader.num_workers,
            seed=torch.initial_seed(),
            dataset=loader.dataset,
        )
    try:
        yield
    finally:
        worker._worker_info = before


def worker_number(ref: BatchRef) -> int | None:
    return ref.indices.worker if isinstance(ref.indices, Indices) else None


def source_behind(owner: Any) -> SampleSource | None:
    for candidate in (owner, getattr(owner, "loader", None), getattr(owner, "dataloader", None)):
        if isinstance(candidate, DataLoader):
            return SampleSource(candidate.dataset, candidate.collate_fn, candidate.num_workers)
    is_iterator = isinstance(owner, _BaseDataLoaderIter)  # its loader is gone already
    iterator = owner if is_iterator else samples.iterator if owner is None else None
    if iterator is None:
        return None
    return SampleSource(iterator._dataset, iterator._collate_fn, iterator._num_workers)


def is_felt(loader: SampleSource) -> bool:
    """Whether fetching a sample once more would change something of the script's: a count, a cache."""
    functions = Functions(lambda obj: False)
    kind = type(loader.dataset)
    getter = getattr(kind, "__getitems__", None) or getattr(kind, "__getitem__", None)
    collate, owner = loader.collate_fn, []
    if not isinstance(collate, FunctionType):
        owner = [known(getattr(collate, "__self__", collate))]
        collate = getattr(collate, "__func__", None) or class_member(type(collate), "__call__")
    for func, given in ((getter, [known(loader.dataset)]), (collate, owner)):
        if isinstance(func, FunctionType) and is_user_file(func.__code__.co_filename):
            summary = functions.summarize(func, [*given, UNKNOWN], {}, False, 0)
            # The random numbers are put back afterwards, and a generator of the sample's own is nobody else's.
            if summary is not None and summary.mutates - {RANDOM}:
                return True
    return False


def fetched(loader: SampleSource, indices: Any) -> Any:
    dataset: Any = loader.dataset
    if hasattr(dataset, "__getitems__"):
        samples = dataset.__getitems__(list(indices))
    else:
        samples = [dataset[i] for i in indices]
    return loader.collate_fn(samples)
