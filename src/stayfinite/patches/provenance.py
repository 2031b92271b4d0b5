"""Records where state came from (loads, checkpoints) before anything fails.

After a failure it cannot be seen whether the model was restored, and from which file. So `load_state_dict`, `torch.load` and
similar calls leave a record. The calls themselves are unchanged. Records are in side tables with weak references.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _IncompatibleKeys
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from .firewall import Firewall
from .imports import ImportPatch, patch_when_imported
from .loaders import note_samples
from .made_at import CallStack, call_stack
from .made_at import targets as _constructors
from .manager import Subscribers, Subscription, Target, close_all, subscribe

__all__ = ["Provenance", "install", "provenance", "remove"]


@dataclass
class Restore:
    """A call of `load_state_dict`, and the file that was read just before it."""

    path: str | None
    order: int
    saved: dict[str, Any]
    before: tuple[float, ...] = ()
    """The optimizer's learning rates before they were replaced."""
    stack: CallStack = ()
    """The caller."""


@dataclass(frozen=True)
class FileRead:
    """The contents of a file that `torch.load` read, besides weights."""

    path: str | None
    has_optimizer: bool = False
    has_scheduler: bool = False
    lr: tuple[float, ...] = ()


class Provenance:
    """The records of this process."""

    def __init__(self) -> None:
        self.restored: weakref.WeakKeyDictionary[Any, Restore] = weakref.WeakKeyDictionary()
        self.checks: weakref.WeakSet[Any] = weakref.WeakSet()
        """Checks (`on_restore`) that run before a state is restored; False prevents it."""
        self.stand_ins: weakref.WeakSet[Any] = weakref.WeakSet()
        """Redirections (`instead`) of files that were written elsewhere."""
        self.last_path: str | None = None
        self.last_read: FileRead | None = None
        self.averages: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Every `torch.optim.swa_utils.AveragedModel` that was made."""
        self.has_averages = False
        self._order = 0
        self._loaded: dict[int, weakref.ref[Any]] = {}
        self._lock = threading.Lock()

    def instead(self, path: Any) -> Any:
        """The file to read instead of this path, if a save to it was refused."""
        for each in list(self.stand_ins):
            found = each.instead(path)
            if found is not path:
                return found
        return path

    def note_restore(
        self, target: Any, saved: Any, before: tuple[float, ...] = (), stack: CallStack = ()
    ) -> None:
        with self._lock:
            self._order += 1
            small = {
                k: saved[k] for k in ("param_groups",) if isinstance(saved, dict) and k in saved
            }
            self.restored[target] = Restore(self.last_path, self._order, small, before, stack)

    def note_loaded(self, value: Any) -> None:
        """Note that these tensors came from a file."""
        self._loaded = {k: r for k, r in self._loaded.items() if r() is not None}
        self._loaded.update((id(t), weakref.ref(t)) for t in _tensors(value))

    def is_loaded(self, value: Any) -> bool:
        """Whether any of these tensors came from a file."""
        return any(
            (ref := self._loaded.get(id(t))) is not None and ref() is t for t in _tensors(value)
        )

    def restore_of(self, *objects: Any) -> Restore | None:
        """The record of the first of these objects, or of a module that contains it, that was restored."""
        for obj in objects:
            found = self.restored.get(obj)
            if found is not None:
                return found
        return None


provenance = Provenance()
_firewall = Firewall("noting where things come from")
_subscriptions: list[Subscription | ImportPatch] = []
_users = 0
_IMPORT = "stayfinite.guard"

_RESTORE = "a restore, and the file it came from, is noted and checked"
_AVERAGE = "running averages of the weights are noted when they are made"


def install() -> None:
    """Start recording, until `remove` has been called as often as this."""
    global _users
    _users += 1
    if _users > 1:
        return
    schedulers = torch.optim.lr_scheduler.LRScheduler
    for owner in (nn.Module, Optimizer, schedulers):
        _add(owner, "load_state_dict", _RESTORE, _load_state_dict)
    _add(torch, "load", _RESTORE, _torch_load)
    _add(AveragedModel, "__init__", _AVERAGE, _average_init)
    _subscriptions.extend(note_samples())
    for target, make in _constructors():
        _subscriptions.append(subscribe(target, make, provenance))
    _subscriptions.append(
        patch_when_imported("safetensors.torch", "load_file", _RESTORE, "provenance", _load_file, provenance)
    )  # fmt: skip


def remove(is_last_user: bool = False) -> None:
    """Stop recording; `is_last_user`: also end the recording that began with the import of `Guard`."""
    global _users
    left = max(0, _users - 1)
    if left == 1 and is_last_user and _IMPORT in sys.modules:
        left = 0
    if not left:
        close_all(_subscriptions)
    _users = left  # counted after success, so that a failed call can be repeated


def _add(owner: Any, name: str, reason: str, make: Any) -> None:
    _subscriptions.append(subscribe(Target(owner, name, reason, "provenance"), make, provenance))


def _load_file(original: Any, subscribers: Subscribers) -> Any:
    def load_file(filename: Any, *args: Any, **kwargs: Any) -> Any:
        filename = provenance.instead(filename)
        value = original(filename, *args, **kwargs)
        provenance.last_path = str(filename)
        _firewall.call(provenance.note_loaded, value)
        return value

    return load_file


def _average_init(original: Any, subscribers: Subscribers) -> Any:
    def __init__(average: Any, *args: Any, **kwargs: Any) -> None:
        original(average, *args, **kwargs)
        provenance.averages.add(average)
        provenance.has_averages = True

    return __init__


def _load_state_dict(original: Any, subscribers: Subscribers) -> Any:
    def load_state_dict(target: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        for check in list(provenance.checks):
            if not _firewall.call(check.on_restore, target, state_dict, fallback=True):
                return _IncompatibleKeys([], []) if isinstance(target, nn.Module) else None
        before = _firewall.call(_rates, getattr(target, "param_groups", ()), fallback=())
        result = original(target, state_dict, *args, **kwargs)
        stack = _firewall.call(call_stack, sys._getframe(1), fallback=())
        _firewall.call(provenance.note_restore, target, state_dict, before, stack)
        return result

    return load_state_dict


def _torch_load(original: Any, subscribers: Subscribers) -> Any:
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        f = provenance.instead(f)
        path = f if isinstance(f, str) or hasattr(f, "__fspath__") else getattr(f, "name", None)
        provenance.last_path = str(path) if path is not None else None
        value = original(f, *args, **kwargs)
        _firewall.call(_note_file, value)
        return value

    return load


def _note_file(value: Any) -> None:
    provenance.last_read = _summary(provenance.last_path, value)
    provenance.note_loaded(value)


def _summary(path: str | None, value: Any) -> FileRead:
    """Recognize optimizer and scheduler states by their shape, under any key."""
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


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in the contents of a file."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 8 and isinstance(value, (Mapping, list, tuple)):
        inside: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
        for each in inside:
            yield from _tensors(each, depth + 1)
