"""Finds the samples: a loader's dataset, or its stream of batches."""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ...runtime.batches import named_tensors as batch_parts
from ...runtime.rows import num_rows
from .stats import PartStats

__all__ = ["OnSamples", "Scan", "scan_batches", "scan_loader"]

BUDGET_S = 20.0
BLOCK_ELEMENTS = 1 << 18
BLOCK_SAMPLES = 512
_TRIAL = 32
_MAX_ERRORS = 20
_MAX_HASHES = 200_000
_NAMES = tuple(f"sample[{i}]" for i in range(8))

OnSamples = Callable[[int, "int | None"], None]


@dataclass
class Scan:
    """The result of reading the data."""

    parts: dict[str, PartStats] = field(default_factory=dict)
    num_seen: int = 0
    num_total: int | None = None
    errors: list[tuple[int, str]] = field(default_factory=list)
    """(sample, what it raised)"""
    num_errors: int = 0
    num_duplicates: int = 0
    first_duplicate: tuple[int, int] | None = None
    by_sample: bool = True
    """Whether an index is a sample's number in the dataset (else a row of the stream)."""
    _hashes: dict[int, int] = field(default_factory=dict)
    _waiting: dict[tuple[str, tuple[int, ...], torch.dtype], list[tuple[int, Tensor]]] = field(
        default_factory=dict
    )

    def part(self, name: str) -> PartStats:
        return self.parts.setdefault(name, PartStats(name))

    def add_sample(self, index: int, sample: Any) -> None:
        """One sample; blocks of equal ones are worked on together."""
        self.num_seen += 1
        tensors = list(sample_parts(sample))
        self._note_duplicate(index, [t for _, t in tensors])
        for name, t in tensors:
            key = (name, tuple(t.shape), t.dtype)
            waiting = self._waiting.setdefault(key, [])
            waiting.append((index, t))
            if len(waiting) * max(t.numel(), 1) >= BLOCK_ELEMENTS or len(waiting) >= BLOCK_SAMPLES:
                self._work_off(key)

    def _work_off(self, key: tuple[str, tuple[int, ...], torch.dtype]) -> None:
        waiting = self._waiting.pop(key)
        block = torch.stack([t.detach() for _, t in waiting])
        self.part(key[0]).update(block, torch.tensor([i for i, _ in waiting]))

    def finish(self) -> Scan:
        for key in list(self._waiting):
            self._work_off(key)
        return self

    def _note_duplicate(self, index: int, tensors: list[Tensor]) -> None:
        floats = [t for t in tensors if t.is_floating_point() and t.numel() >= 4]
        if not floats or len(self._hashes) >= _MAX_HASHES:
            return
        code = hash(tuple(_bytes(t) for t in floats))
        known = self._hashes.setdefault(code, index)
        if known != index:
            self.num_duplicates += 1
            self.first_duplicate = self.first_duplicate or (known, index)


def _bytes(t: Tensor) -> bytes:
    flat = t.detach().reshape(-1)
    if flat.numel() > 4096:  # the ends and some of the middle distinguish samples
        flat = torch.cat([flat[:1024], flat[:: flat.numel() // 2048], flat[-1024:]])
    flat = flat.cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def sample_parts(sample: Any) -> Iterator[tuple[str, Tensor]]:
    """The parts of a sample as tensors: arrays and plain numbers count as well."""
    for name, value in _usual_parts(sample) or batch_parts(_as_tensors(sample), "sample"):
        if value.device.type != "meta" and value.layout == torch.strided:
            yield name, value


def _usual_parts(sample: Any) -> Iterable[tuple[str, Tensor]] | None:
    """A few tensors, as most samples are: there may be very many of them."""
    if type(sample) is not tuple or not 0 < len(sample) <= len(_NAMES):
        return None
    return zip(_NAMES, sample) if all(type(value) is Tensor for value in sample) else None


def _as_tensors(value: Any, depth: int = 0) -> Any:
    numpy = sys.modules.get("numpy")
    if isinstance(value, (bool, int, float)):
        return torch.tensor(value)
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.number)):
        array = numpy.asarray(value)
        return torch.from_numpy(array.copy()) if array.dtype.kind in "fiub" else None
    if depth > 6:
        return value
    if isinstance(value, dict):
        return {k: _as_tensors(v, depth + 1) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_as_tensors(v, depth + 1) for v in value))
    if isinstance(value, (list, tuple)) and len(value) <= 64:
        return type(value)(_as_tensors(v, depth + 1) for v in value)
    return value


def scan_loader(
    loader: Any, batches: list[Any], num_samples: int | None, on_samples: OnSamples
) -> Scan:
    """The samples behind a loader, as many as the time allows or as were asked for."""
    dataset = getattr(loader, "dataset", None)
    if (
        isinstance(dataset, TensorDataset)
        and type(dataset).__getitem__ is TensorDataset.__getitem__
    ):
        return _scan_tensors(dataset.tensors, num_samples, on_samples)
    if dataset is not None and _is_indexable(dataset):
        return _scan_indexed(dataset, num_samples, on_samples)
    again = iter(loader) is not loader if not isinstance(loader, DataLoader) else True
    source = _plain_iter(loader) if again else itertools.chain(batches, loader)
    return scan_batches(source, num_samples, on_samples, _length(loader))


def _is_indexable(dataset: Any) -> bool:
    if isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__"):
        return False
    return _length(dataset) is not None


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


def _plain_iter(loader: Any) -> Iterator[Any]:
    """The loader's own iteration, past any watcher of it."""
    method = type(loader).__iter__
    return iter(getattr(method, "__wrapped__", method)(loader))


def _scan_tensors(
    tensors: tuple[Tensor, ...], num_samples: int | None, on_samples: OnSamples
) -> Scan:
    scan = Scan(num_total=len(tensors[0]))
    chosen = _spread(scan.num_total or 0, num_samples)
    deadline = time.perf_counter() + (math.inf if num_samples is not None else BUDGET_S)
    for name, t in ((f"sample[{i}]", t) for i, t in enumerate(tensors)):
        step = max(1, BLOCK_ELEMENTS // max(t[0].numel() if len(t) else 1, 1))
        for start in range(0, len(chosen), step):
            index = chosen[start : start + step]
            scan.part(name).update(t[index].detach().cpu(), index)
            scan.num_seen = max(scan.num_seen, start + len(index))
            on_samples(scan.num_seen, scan.num_total)
            if time.perf_counter() > deadline:
                break
    _find_duplicates(scan, tensors, chosen)
    return scan


def _find_duplicates(scan: Scan, tensors: tuple[Tensor, ...], chosen: Tensor) -> None:
    for i in chosen[:20_000].tolist():
        scan._note_duplicate(i, [t[i] for t in tensors if t.dim() > 1])


def _spread(total: int, wanted: int | None) -> Tensor:
    """Evenly spread indices; all of them where none or as many were asked for."""
    if wanted is None or wanted < 0 or wanted >= total:
        return torch.arange(total)
    return (torch.arange(wanted, dtype=torch.float64) * (total / max(wanted, 1))).long()


def _scan_indexed(dataset: Any, num_samples: int | None, on_samples: OnSamples) -> Scan:
    total = len(dataset)
    scan = Scan(num_total=total)
    if num_samples is None:
        num_samples = _affordable(dataset, total)
    for done, index in enumerate(_spread(total, num_samples).tolist()):
        try:
            sample = dataset[index]
        except Exception as e:
            scan.num_errors += 1
            if len(scan.errors) < 5:
                scan.errors.append((index, f"{type(e).__name__}: {str(e).partition(chr(10))[0]}"))
            if scan.num_errors >= _MAX_ERRORS and not scan.num_seen:
                break
            continue
        scan.add_sample(index, sample)
        if done % 64 == 0:
            on_samples(done, num_samples if num_samples >= 0 else total)
    return scan.finish()


def _affordable(dataset: Any, total: int) -> int:
    """How many samples fit the time, by the look of a few spread over the set."""
    begin = time.perf_counter()
    num_tried = 0
    for index in _spread(total, _TRIAL).tolist():
        try:
            list(sample_parts(dataset[index]))
        except Exception:
            continue
        num_tried += 1
        if time.perf_counter() - begin > BUDGET_S / 4:
            break
    each = (time.perf_counter() - begin) / max(num_tried, 1) + 2e-5
    return max(min(total, int(BUDGET_S / each)), min(total, _TRIAL))


def scan_batches(
    batches: Iterable[Any],
    num_samples: int | None,
    on_samples: OnSamples,
    num_batches: int | None = None,
) -> Scan:
    """A stream of batches: an index is the number of the row in the order of the stream."""
    scan = Scan(by_sample=False)
    deadline = time.perf_counter() + (math.inf if num_samples is not None else BUDGET_S)
    for done, batch in enumerate(batches, 1):
        _add_batch(scan, batch)
        on_samples(done, num_batches)
        is_enough = num_samples is not None and 0 <= num_samples <= scan.num_seen
        if is_enough or time.perf_counter() > deadline:
            if num_batches:
                scan.num_total = math.ceil(scan.num_seen / done * num_batches)
            return scan.finish()
    scan.num_total = scan.num_seen
    return scan.finish()


def _add_batch(scan: Scan, batch: Any) -> None:
    rows = num_rows(batch) or 1
    first = scan.num_seen
    for name, t in sample_parts(batch):
        name = name.replace("sample", "batch", 1)
        if t.dim() and t.shape[0] == rows:
            scan.part(name).update(t.detach().cpu(), torch.arange(first, first + rows))
        else:
            scan.part(name).update(t.detach().cpu().unsqueeze(0), torch.tensor([first]))
    scan.num_seen += rows
