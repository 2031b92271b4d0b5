"""Reads data files (arrays and tables) in pieces; runs nothing in them."""

from __future__ import annotations

import csv
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from ...checkpoint.contents import NamedTensor, named_tensors
from ...checkpoint.files import MappedFile
from ...checkpoint.limits import DEFAULT_LIMITS
from ...checkpoint.measure import typed_blocks
from ...checkpoint.one_file import open_contents
from ...errors import CheckpointError, UsageError
from .source import BLOCK_ELEMENTS, BLOCK_SAMPLES, BUDGET_S, OnSamples, Scan

__all__ = ["scan_file"]


def scan_file(path: Path, num_samples: int | None, on_samples: OnSamples) -> Scan:
    """A data file: npy, npz, safetensors, pt (never unpickled) or csv; rows are samples."""
    if not path.exists():
        raise UsageError(f"there is no data file {path}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; expected a file: {_FORMATS}")
    if path.suffix.lower() in (".csv", ".tsv"):
        return _scan_csv(path, num_samples, on_samples)
    try:
        with MappedFile(path) as file:
            contents = open_contents(file, DEFAULT_LIMITS)
            tensors = list(named_tensors(contents, "data", DEFAULT_LIMITS))
            if not tensors:
                raise UsageError(f"{path} holds no numeric array; expected {_FORMATS}")
            return _scan_stored(tensors, num_samples, on_samples)
    except CheckpointError as e:
        raise UsageError(f"{path}: {e}; expected {_FORMATS}") from None


_FORMATS = "npy, npz, safetensors, pt or csv"


def _scan_stored(
    tensors: list[NamedTensor], num_samples: int | None, on_samples: OnSamples
) -> Scan:
    scan = Scan()
    lengths = [t.ref.size[0] for t in tensors if t.ref.size]
    scan.num_total = max(lengths, default=1)
    budget = math.inf if num_samples is not None else BUDGET_S / len(tensors)
    for tensor in tensors:
        num_seen = 0
        spread = _Spread(tensor, budget)
        for start, block in _stored_blocks(tensor, num_samples, spread.is_next):
            scan.part(tensor.name).update(block, torch.arange(start, start + len(block)))
            num_seen += len(block)
            on_samples(num_seen, scan.num_total)
        scan.num_seen = max(scan.num_seen, num_seen)
    return scan


class _Spread:
    """Which blocks are looked at: all of them where the time allows it, else evenly spread ones."""

    def __init__(self, tensor: NamedTensor, budget: float) -> None:
        self._budget = budget
        self._begin = time.perf_counter()
        self._number = math.ceil(math.prod(tensor.ref.size) / BLOCK_ELEMENTS)
        self._next, self._last, self._num_taken = 0, 0, 0

    def is_next(self, number: int) -> bool:
        """Asked for one after the other; what was taken has been looked at by then."""
        if self._num_taken and self._next <= self._last:
            spent = time.perf_counter() - self._begin
            left = max(self._budget - spent, self._budget / 100)
            is_limited = math.isfinite(self._budget)
            each = spent / self._num_taken
            every = each * (self._number - self._last) / left if is_limited else 1
            self._next = self._last + max(1, math.ceil(every))
        if number < self._next:
            return False
        self._last = number
        self._num_taken += 1
        return True


def _stored_blocks(
    tensor: NamedTensor, num_samples: int | None, is_wanted: Callable[[int], bool]
) -> Iterator[tuple[int, Tensor]]:
    """(first row, rows) of an array in a file; one that does not lie row by row is one row."""
    assert tensor.blob is not None and tensor.layout is not None and tensor.elements is not None
    elements, size = tensor.elements, tensor.ref.size
    if elements.components > 1:
        return
    width = math.prod(size[1:])
    is_by_row = bool(size) and tensor.ref.stride == _row_strides(size) and width > 0
    rows = max(1, BLOCK_ELEMENTS // width) if is_by_row else 1
    at_most = rows * width if is_by_row else BLOCK_ELEMENTS
    first: int | None = None  # where the array begins in its storage
    for at, flat in typed_blocks(tensor.blob, tensor.layout, elements, at_most, is_wanted):
        block = flat.reshape(-1, *size[1:]) if is_by_row else flat.view(1, -1, 1)
        first = at.start if first is None else first
        start = (at.start - first) // width if is_by_row else 0
        yield start, block
        end = start + len(block) if is_by_row else 0
        if num_samples is not None and 0 <= num_samples <= end:
            return


def _row_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _scan_csv(path: Path, num_samples: int | None, on_samples: OnSamples) -> Scan:
    """Columns that hold numbers; an empty field is a missing value."""
    with open(path, newline="", encoding="utf-8", errors="replace") as f:
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        rows = csv.reader(f, delimiter=delimiter)
        first = next(rows, None)
        if first is None:
            raise UsageError(f"{path} is empty; expected rows of numbers")
        names = first if not any(_is_number(v) for v in first) else None
        body = rows if names is not None else itertools.chain([first], rows)
        return _csv_columns(
            body, names or [f"column {i}" for i in range(len(first))], num_samples, on_samples
        )


def _csv_columns(
    body: Iterable[list[str]], names: list[str], num_samples: int | None, on_samples: OnSamples
) -> Scan:
    scan = Scan()
    texts: set[int] = set()
    while True:
        wanted = BLOCK_SAMPLES * 8
        if num_samples is not None and num_samples >= 0:
            wanted = min(wanted, num_samples - scan.num_seen)
        chunk = list(itertools.islice(body, max(wanted, 0)))
        if not chunk:
            break
        index = torch.arange(scan.num_seen, scan.num_seen + len(chunk))
        for column, name in enumerate(names):
            fields = [r[column] if column < len(r) else "" for r in chunk]
            numbers = [_parse(v) for v in fields]
            given = [n for n, v in zip(numbers, fields) if v.strip()]
            if column in texts or (given and all(n is None for n in given)):
                texts.add(column)
                continue
            values = [math.nan if n is None else n for n in numbers]
            scan.part(name).update(torch.tensor(values, dtype=torch.float64), index)
        scan.num_seen += len(chunk)
        on_samples(scan.num_seen, None)
    scan.num_total = scan.num_seen if num_samples is None else None
    return scan


def _parse(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_number(text: str) -> bool:
    return _parse(text) is not None
