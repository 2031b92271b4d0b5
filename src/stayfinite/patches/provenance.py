"""Passive notes of what happened before anything went wrong.

Was this model restored from a checkpoint, which file was read, which DataLoader made this batch?
Nobody can tell afterwards, so the calls that matter leave a note. A note changes nothing: the call
goes on as it was. Notes hold weak references only.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _IncompatibleKeys
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .batches import named_tensors
from .imports import wrap_when_imported

__all__ = ["Witness", "witness"]


@dataclass
class Restore:
    """A `load_state_dict`, and the file read just before it."""

    path: str | None
    order: int
    saved: dict[str, Any]
    before: tuple[float, ...] = ()
    """The optimizer's learning rates before they were replaced."""


@dataclass(frozen=True)
class FileRead:
    """What a file that `torch.load` read held besides weights."""

    path: str | None
    has_optimizer: bool = False
    has_scheduler: bool = False
    lr: tuple[float, ...] = ()


class Witness:
    """What was seen; one per process."""

    def __init__(self) -> None:
        self.restored: weakref.WeakKeyDictionary[Any, Restore] = weakref.WeakKeyDictionary()
        self.checks: weakref.WeakSet[Any] = weakref.WeakSet()
        """Who has a say (`on_restore`) before a state is restored; False leaves it out."""
        self.instead: Callable[[Any], Any] = lambda path: path
        """What to read when a script asks for this path: whoever holds saves back knows better."""
        self.last_path: str | None = None
        self.last_read: FileRead | None = None
        self.averages: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Every `torch.optim.swa_utils.AveragedModel` that was made."""
        self.has_averages = False
        self.loader: weakref.ref[DataLoader[Any]] | None = None
        self._iterator: weakref.ref[Any] | None = None
        self.batch_indices: list[Any] | None = None
        """The data set's indices of the batch that a DataLoader made last."""
        self._order = 0
        self._loaded: dict[int, weakref.ref[Any]] = {}
        self._lock = threading.Lock()

    def note_restore(self, target: Any, saved: Any, before: tuple[float, ...] = ()) -> None:
        with self._lock:
            self._order += 1
            small = {
                k: saved[k] for k in ("param_groups",) if isinstance(saved, dict) and k in saved
            }
            self.restored[target] = Restore(self.last_path, self._order, small, before)

    def note_loaded(self, value: Any) -> None:
        """These tensors came from a file."""
        self._loaded = {k: r for k, r in self._loaded.items() if r() is not None}
        self._loaded.update((id(t), weakref.ref(t)) for _, t in named_tensors(value))

    def is_loaded(self, value: Any) -> bool:
        """Whether any tensor in it came from a file."""
        return any(
            (ref := self._loaded.get(id(t))) is not None and ref() is t
            for _, t in named_tensors(value)
        )

    def restore_of(self, *objects: Any) -> Restore | None:
        """The note of the first of these, or of a module that holds it, that was restored."""
        for obj in objects:
            found = self.restored.get(obj)
            if found is not None:
                return found
        return None

    @property
    def iterator(self) -> Any:
        """The DataLoader's iterator that made a batch last, while it lives."""
        return self._iterator() if self._iterator is not None else None


witness = Witness()
_installed = False


def install() -> None:
    """Leave notes from now on; safe to call again."""
    global _installed
    if _installed:
        return
    _installed = True
    _wrap_load(nn.Module, "load_state_dict")
    _wrap_load(Optimizer, "load_state_dict")
    _wrap_load(torch.optim.lr_scheduler.LRScheduler, "load_state_dict")
    _wrap_torch_load()
    _wrap_loader()
    _wrap_average()
    wrap_when_imported("safetensors.torch", "load_file", _load_file)


def _load_file(original: Any) -> Any:
    def load_file(filename: Any, *args: Any, **kwargs: Any) -> Any:
        filename = witness.instead(filename)
        value = original(filename, *args, **kwargs)
        witness.last_path = str(filename)
        witness.note_loaded(value)
        return value

    return load_file


def _wrap_average() -> None:
    init = AveragedModel.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        witness.averages.add(self)
        witness.has_averages = True

    AveragedModel.__init__ = __init__  # type: ignore[method-assign]


def _wrap_load(cls: type, name: str) -> None:
    original = getattr(cls, name)

    @functools.wraps(original)
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if not all(check.on_restore(self, state_dict) for check in list(witness.checks)):
            return _IncompatibleKeys([], []) if isinstance(self, nn.Module) else None
        before = _rates(getattr(self, "param_groups", ()))
        result = original(self, state_dict, *args, **kwargs)
        witness.note_restore(self, state_dict, before)
        return result

    setattr(cls, name, load_state_dict)


def _wrap_torch_load() -> None:
    original = torch.load

    @functools.wraps(original)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        f = witness.instead(f)
        path = f if isinstance(f, str) or hasattr(f, "__fspath__") else getattr(f, "name", None)
        witness.last_path = str(path) if path is not None else None
        value = original(f, *args, **kwargs)
        witness.last_read = _summary(witness.last_path, value)
        witness.note_loaded(value)
        return value

    torch.load = load


def _summary(path: str | None, value: Any) -> FileRead:
    """Optimizer and scheduler states are known by their shape, whatever key they are under."""
    parts = [value, *value.values()] if isinstance(value, dict) else []
    dicts = [p for p in parts if isinstance(p, dict)]
    optimizers = [d for d in dicts if "param_groups" in d and "state" in d]
    rates = tuple(r for d in optimizers for r in _rates(d["param_groups"]))
    return FileRead(path, bool(optimizers), any("last_epoch" in d for d in dicts), rates)


def _rates(groups: Any) -> tuple[float, ...]:
    if not isinstance(groups, (list, tuple)):
        return ()
    found = [g.get("lr") for g in groups if isinstance(g, dict)]
    return tuple(float(r) for r in found if isinstance(r, (int, float, torch.Tensor)))


def _wrap_loader() -> None:
    next_index = _BaseDataLoaderIter._next_index
    next_batch = _BaseDataLoaderIter.__next__
    init = _BaseDataLoaderIter.__init__

    @functools.wraps(init)
    def __init__(self: Any, loader: DataLoader[Any]) -> None:
        witness.loader = weakref.ref(loader)
        self._stayfinite_indices = deque(maxlen=1024)
        init(self, loader)

    @functools.wraps(next_index)
    def _next_index(self: Any) -> Any:
        index = next_index(self)  # type: ignore[no-untyped-call]
        if isinstance(index, list):
            vars(self).setdefault("_stayfinite_indices", deque(maxlen=1024)).append(index)
        return index

    @functools.wraps(next_batch)
    def __next__(self: Any) -> Any:
        batch = next_batch(self)
        witness._iterator = weakref.ref(self)
        waiting = vars(self).get("_stayfinite_indices")
        witness.batch_indices = waiting.popleft() if waiting else None
        return batch

    for wrapper in (__init__, _next_index, __next__):
        setattr(_BaseDataLoaderIter, wrapper.__name__, wrapper)
