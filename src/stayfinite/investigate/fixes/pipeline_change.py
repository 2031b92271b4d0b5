"""A fix of the line of the data pipeline that made a sample bad: the samples are fetched once more with it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.utils.data import IterableDataset

from ...diagnose.evidence import Evidence
from ...locate.frames import is_user_file
from ...remedies import Candidate, Remedy, Source, pipeline_candidates
from ...runtime.batches import named_tensors
from ...runtime.rng import RngState
from ...runtime.window import BatchRef
from ...sandbox.compute import computing_only
from ..evidence.data_facts import bad_batch, first_bad_line, is_bad_batch
from ..evidence.sample_source import (
    SampleSource,
    as_worker,
    fetched,
    is_felt,
    source_behind,
    worker_number,
)
from ..laboratory import Laboratory
from ..replays.changed_source import ChangedSource, NotRunnable, functions_of, text_of_file
from .setting_change import SettingChange

__all__ = ["pipeline_changes"]

_MOST_LINES = 3
_MOST_TRIALS = 24
_NUM_HEALTHY = 3
_FAR = 100.0


def pipeline_changes(lab: Laboratory, e: Evidence) -> Iterator[SettingChange]:
    """Changes with which the bad samples are finite, and others the same as before."""
    d = e.data
    ref = bad_batch(lab.window)
    if d is None or d.origin != "pipeline" or d.is_stored or ref is None or ref.indices is None:
        return
    text = text_of_file(d.file) if d.file is not None and is_user_file(d.file) else None
    source = source_behind(ref.loader)
    if d.file is None or d.line is None or text is None or source is None:
        return
    rng = RngState.now()
    functions = functions_of(d.file)  # a sandbox hides them from the collector
    try:
        with computing_only(), as_worker(worker_number(ref), source):
            if isinstance(source.dataset, IterableDataset) or is_felt(source):
                return
            found = _Pipeline(lab, source, ref, d.file, text, functions, rng).repaired(d.line)
    except Exception:
        return  # somebody else's data set
    finally:
        rng.restore()
    if found is not None:
        yield found


class _Pipeline:
    """Fetches the failing batch and healthy ones with changes of one file."""

    def __init__(
        self, lab: Laboratory, source: SampleSource, ref: BatchRef, file: str, text: str,
        functions: list[FunctionType], rng: RngState,
    ) -> None:  # fmt: skip
        self._source = source
        self._ref = ref
        self._file = file
        self._text = text
        self._rng = rng
        self._functions = functions
        log = lab.investigation.engine.log
        windows = [w for w in reversed([*log.recent, *log]) if w is not lab.window]
        batches = list({id(b): b for w in windows for b in w.batches}.values())
        healthy = [b for b in batches if b.indices is not None and not is_bad_batch(b.value)]
        self._healthy = [b.indices for b in healthy[:_NUM_HEALTHY]]
        self._as_is: list[Any] = []
        self._num_trials = 0

    def repaired(self, line: int) -> SettingChange | None:
        if not is_bad_batch(self._fetch(self._ref.indices)):
            return None  # it draws random numbers: a good result would prove nothing
        self._as_is = [self._fetch(indices) for indices in self._healthy]
        return self._search(self._text, line, (), 1)

    def _search(
        self, text: str, line: int, before: tuple[Remedy, ...], depth: int
    ) -> SettingChange | None:
        """A change of this line; where another line is bad with it, of both."""
        for candidate in pipeline_candidates(Source(text), line):
            self._num_trials += 1
            if self._num_trials > _MOST_TRIALS:
                return None
            made = Candidate((*before, *candidate.remedies), candidate.text)
            try:
                change = ChangedSource(self._file, self._text, made.text, self._functions)
            except NotRunnable:
                continue
            with change.installed():
                new = self._fetch(self._ref.indices)
                place = None
                if new is not None and is_bad_batch(new):
                    self._rng.restore()
                    place = first_bad_line(self._source, self._ref.indices)
                is_same = new is not None and place is None and self._is_same()
            if place is not None and place.file == change.name and depth < _MOST_LINES:
                found = None
                if place.line != change.line_after(line):
                    found = self._search(made.text, place.line, made.remedies, depth + 1)
                if found is not None:
                    return found
            elif is_same and new is not None and self._is_usual(new):
                return self._made(made, new)
        return None

    def _fetch(self, indices: Any) -> Any:
        self._rng.restore()
        try:
            return fetched(self._source, indices)
        except Exception:
            return (
                None  # a method that only a tensor has, a function that only an array can be given
            )

    def _is_same(self) -> bool:
        """Whether healthy batches are what they were without the change."""
        return all(
            _are_equal(self._fetch(indices), as_is)
            for indices, as_is in zip(self._healthy, self._as_is)
        )

    def _is_usual(self, new: Any) -> bool:
        """Of the same shapes, and no number far from those of healthy batches."""
        shapes = [t.shape for _, t in named_tensors(new)]
        usual = max((_largest(b) for b in self._as_is), default=math.inf)
        is_fitting = shapes == [t.shape for _, t in named_tensors(self._ref.value)]
        return is_fitting and not _largest(new) > _FAR * max(usual, 1.0)

    def _made(self, made: Candidate, new: Any) -> SettingChange:
        healthy = len(self._healthy)
        note = "the samples of this batch were fetched with it and are finite"
        if healthy:
            note += f"; those of {healthy} healthy {'batch' if healthy == 1 else 'batches'} are the same"
        pairs = [
            (old, fresh)
            for (_, old), (_, fresh) in zip(named_tensors(self._ref.value), named_tensors(new))
        ]
        return SettingChange(
            self._file, self._text, made.text, made, partial(_with_values, pairs), note=note
        )


def _largest(batch: Any) -> float:
    tensors = [t for _, t in named_tensors(batch) if t.numel() and t.is_floating_point()]
    return max((float(t.abs().max()) for t in tensors), default=0.0)


def _are_equal(one: Any, other: Any) -> bool:
    mine, theirs = list(named_tensors(one)), list(named_tensors(other))
    return [n for n, _ in mine] == [n for n, _ in theirs] and all(
        torch.equal(a, b) for (_, a), (_, b) in zip(mine, theirs)
    )


@contextlib.contextmanager
def _with_values(pairs: list[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """The batch with what the changed pipeline makes of it."""
    kept = [old.detach().clone() for old, _ in pairs]
    _write([(old, new) for old, new in pairs])
    try:
        yield
    finally:
        _write([(old, before) for (old, _), before in zip(pairs, kept)])


def _write(pairs: list[tuple[Tensor, Tensor]]) -> None:
    olds = tuple(old for old, _ in pairs)
    with torch.no_grad(), _unsafe_preserve_version_counter(olds):
        for old, new in pairs:
            old.copy_(new)
