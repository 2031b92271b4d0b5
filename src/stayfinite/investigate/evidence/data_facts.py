"""Fetches a bad sample again: was it stored bad, or did the pipeline make it bad?

The samples of the failing batch are fetched again under the operator trace, with the contents of the data set as sources. For
NumPy and plain Python, a line trace finds the first line after which a local variable is not finite.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from ...diagnose.evidence import Data
from ...locate.frames import Frame, is_user_file
from ...locate.slice import Origin, find_origin
from ...locate.trace import OpTrace, SourceRef
from ...numerics.health import badness
from ...runtime.batches import named_tensors
from ...runtime.rng import RngState
from ...runtime.window import BatchRef, Window
from ...sandbox.compute import computing_only
from ..budget import Budget
from .bad_reads import has_read_bad
from .prepared import made_by_logarithm, made_with_warning
from .sample_source import (
    SampleSource,
    as_worker,
    fetched,
    is_felt,
    source_behind,
    worker_number,
)

__all__ = [
    "bad_batch",
    "first_bad_line",
    "inspect_data",
    "is_bad_batch",
    "other_batches",
    "worker_of",
]

_MAX_STORED = 4096
_READS = {
    "load", "loads", "read", "open", "loadtxt", "genfromtxt", "memmap", "tensor", "as_tensor", "asarray",
    "array", "from_numpy", "float", "stack", "cat", "concatenate", "get", "item", "pop", "clone", "copy",
    "to_numpy", "iloc", "loc", "reader", "DictReader", "split", "strip", "decode", "unsqueeze", "squeeze",
    "reshape", "view", "permute", "transpose", "append", "list", "tuple", "dict", "zip", "default_collate",
    "frombuffer", "fromfile", "astype", "__getitem__", "values", "load_file", "read_csv", "read_parquet",
}  # fmt: skip


def inspect_data(window: Window, seconds: float) -> Data:
    """The origin of the bad value in this window's batch."""
    ref = bad_batch(window)
    if ref is None:
        return Data()
    owner = ref.loader
    if isinstance(owner, (list, tuple)):
        made = made_with_warning([(n, t) for n, t in named_tensors(ref.value, "the list")])
        return made or Data(origin="stored", detail="The list of batches already holds it.")
    loader = source_behind(owner)
    if loader is None:
        return Data()
    rng = RngState.now()
    try:
        with computing_only(), as_worker(worker_number(ref), loader):
            return _again(loader, ref.indices, ref.value, Budget(seconds))
    except Exception:
        return Data()  # an error of the user's data set must not end the investigation
    finally:
        rng.restore()


def other_batches(window: Window, most: int) -> list[Any]:
    """Batches of other samples from the whole data set, if fetching has no side effects."""
    ref = window.batches[-1] if window.batches else None
    loader = source_behind(ref.loader) if ref is not None and ref.indices else None
    if ref is None or loader is None or isinstance(loader.dataset, IterableDataset):
        return []
    rng = RngState.now()
    try:
        with computing_only():
            if is_felt(loader):
                return []
            used, size = set(ref.indices or ()), len(ref.indices or ())
            rest = [i for i in range(len(loader.dataset)) if i not in used]
            starts = range(0, len(rest) - size + 1, size)
            chosen = starts[:: max(1, math.ceil(len(starts) / most))]
            return [fetched(loader, rest[start : start + size]) for start in chosen]
    except Exception:
        return []  # an error of the user's data set: use no other batches
    finally:
        rng.restore()


def worker_of(window: Window) -> int | None:
    """The DataLoader worker that read the bad batch; None for the main process."""
    ref = bad_batch(window)
    return None if ref is None else worker_number(ref)


def bad_batch(window: Window) -> BatchRef | None:
    return next((b for b in window.batches if _bad(b.value)), None)


def _again(loader: SampleSource, indices: Any, batch: Any, budget: Budget) -> Data:
    stored = list(itertools.islice(_stored(loader.dataset, "dataset", 0, set()), _MAX_STORED))
    found = _looked_at(loader, stored, indices, batch, budget)
    if found.origin != "stored":
        return found
    return made_by_logarithm(loader.dataset, stored) or made_with_warning(stored) or found


def _looked_at(
    loader: SampleSource, stored: list[tuple[str, Any]], indices: Any, batch: Any, budget: Budget
) -> Data:
    dirty = [name for name, value in stored if _is_bad_value(value)]
    is_lost = indices is None or isinstance(loader.dataset, IterableDataset)
    if is_lost or is_felt(loader):
        if dirty:
            return Data(origin="stored", detail=f"{dirty[0]} holds non-finite values as stored.")
        return Data(origin="pipeline" if stored else "unknown", detail="What is stored is finite.")
    tensors = [SourceRef("stored", n, v) for n, v in stored if isinstance(v, Tensor)]
    trace = OpTrace(tensors, {})
    with torch.no_grad(), contextlib.closing(trace.modules), trace:
        made = fetched(loader, indices)
        trace.is_paused = True
        origin = find_origin(trace, _bad(made))
    if not _resembles(made, batch):
        return Data()
    if not _bad(made):
        if dirty or not stored:
            return Data()
        return Data(
            origin="pipeline",
            detail="Fetched again, the samples were finite: the pipeline does not return the same values twice.",
        )
    found = _from_trace(origin)
    is_late = budget.is_over
    if found is not None and (found.file is not None or is_late):
        return found
    if is_late:
        return Data(origin="stored" if dirty else "unknown")
    lines = _by_lines(loader, indices, bool(dirty), bool(stored))
    return lines if found is None else _read_at(found, lines)


def _read_at(stored: Data, lines: Data) -> Data:
    """For a sample that is stored bad: the first line that had it is where it was read."""
    return replace(
        stored, file=lines.file, line=lines.line, source=lines.source, function=lines.function
    )


def _resembles(made: Any, batch: Any) -> bool:
    """The last observed loader may not be the one that made this batch."""
    shapes = [(n, t.dtype, t.dim()) for n, t in named_tensors(made)]
    return shapes == [(n, t.dtype, t.dim()) for n, t in named_tensors(batch)]


def _from_trace(origin: Origin | None) -> Data | None:
    if origin is None:
        return None
    if origin.birth is not None:
        if origin.birth.bad_inputs:
            return None  # it received the bad value from code that the trace cannot follow
        user = origin.birth.place.user
        if user is None or not is_user_file(user.file):
            return None
        return Data(
            origin="pipeline",
            file=user.file,
            line=user.line,
            source=user.source,
            function=user.function,
            op=origin.birth.op,
        )
    if origin.source is not None:
        return Data(origin="stored", detail=f"{origin.source.name} holds it as stored.")
    return None


def is_bad_batch(value: Any) -> bool:
    return bool(_bad(value))


def _bad(value: Any) -> list[Tensor]:
    return [t for _, t in named_tensors(value) if badness(t)]


def _stored(value: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Tensors, arrays and numbers that a data set refers to, with their paths."""
    if depth > 5 or id(value) in seen or value is None:
        return
    seen.add(id(value))
    if isinstance(value, Tensor) or type(value).__name__ in ("ndarray", "memmap"):
        yield name, value
        return
    if isinstance(value, (str, bytes, type, ModuleType, bool, int, float)) or (
        callable(value) and (not hasattr(value, "__dict__"))
    ):
        return
    if isinstance(value, dict):
        pairs = [(f"{name}[{k!r}]", v) for k, v in itertools.islice(value.items(), 256)]
    elif isinstance(value, (list, tuple)):
        if value and all(isinstance(v, (int, float)) for v in value[:16]):
            yield name, value
            return
        pairs = [(f"{name}[{i}]", v) for i, v in enumerate(value[:512])]
    elif hasattr(value, "_mgr") and hasattr(value, "to_numpy"):  # a pandas frame or series
        yield name, value.to_numpy()
        return
    else:
        pairs = [(f"{name}.{k}", v) for k, v in getattr(value, "__dict__", {}).items()]
    for key, item in pairs:
        yield from _stored(item, key, depth + 1, seen)


def _is_bad_value(value: Any) -> bool:
    """Whether a tensor, an array, a number or a short list of numbers is not finite."""
    if isinstance(value, Tensor):
        return bool(badness(value))
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, (list, tuple)):
        return any(_is_bad_value(v) for v in value[:4096])
    if isinstance(value, dict):
        return any(_is_bad_value(v) for v in list(value.values())[:64])
    if type(value).__name__ in ("ndarray", "memmap", "float32", "float64", "float16"):
        numpy = sys.modules["numpy"]
        if getattr(value, "dtype", None) is not None and value.dtype.kind in "fc":
            return not bool(numpy.isfinite(value).all())
    return False


class _LineWatch:
    """A line trace over user code that finds the first line that left a non-finite value."""

    def __init__(self) -> None:
        self.found: Frame | None = None
        self.has_read = False
        """Whether that line has taken the value from where it was bad already."""
        self._last: dict[int, int] = {}
        self._known: dict[int, set[str]] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.found is not None or not is_user_file(frame.f_code.co_filename):
            return None
        key = id(frame)
        if event == "call":
            self._known[key] = {n for n, v in frame.f_locals.items() if _is_bad_value(v)}
            return self
        if key in self._last:
            self._check(frame, key, arg if event == "return" else None)
        self._last[key] = frame.f_lineno
        if event == "return":
            self._last.pop(key, None)
        return self

    def _check(self, frame: FrameType, key: int, returned: Any) -> None:
        known = self._known.setdefault(key, set())
        for name, value in frame.f_locals.items():
            if name not in known and _is_bad_value(value):
                self._hit(frame, self._last[key])
                return
        if returned is not None and not known and _is_bad_value(returned):
            self._hit(frame, frame.f_lineno)

    def _hit(self, frame: FrameType, line: int) -> None:
        self.found = Frame(frame.f_code.co_filename, line, frame.f_code.co_name)
        self.has_read = has_read_bad(frame, line, _is_bad_value)


def first_bad_line(loader: SampleSource, indices: Any) -> Frame | None:
    """The line of the user's code that first leaves something non-finite behind while samples are fetched."""
    return _watched(loader, indices).found


def _watched(loader: SampleSource, indices: Any) -> _LineWatch:
    watch = _LineWatch()
    before = sys.gettrace()
    sys.settrace(watch)
    try:
        fetched(loader, indices)
    finally:
        sys.settrace(before)
    return watch


def _by_lines(loader: SampleSource, indices: Any, is_dirty: bool, is_stored: bool) -> Data:
    watch = _watched(loader, indices)
    found = watch.found
    if found is None:
        return Data(origin="stored" if is_dirty else "pipeline" if is_stored else "unknown")
    place = {
        "file": found.file,
        "line": found.line,
        "source": found.source,
        "function": found.function,
    }
    if watch.has_read or _only_reads(found.source):
        return Data(origin="stored", **place)  # type: ignore[arg-type]
    is_clean = is_stored and not is_dirty
    detail = "What is stored is finite." if is_clean else ""
    return Data(origin="pipeline", detail=detail, **place)  # type: ignore[arg-type]


def _only_reads(source: str | None) -> bool:
    """Whether a line only fetches and converts, without arithmetic."""
    try:
        tree = ast.parse((source or "").removeprefix("return ").rstrip(":"))
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.Add, ast.Mod)):
            return False
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if name not in _READS:
                return False
    return True
