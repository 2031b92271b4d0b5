"""A replay request for another rank, in which each rank's own objects are sent by name.

The rank where a failure began decides what to try. The others have the same model, optimizer and steps, each its own part
of them, so only their names are sent. A change of the source or of a setting is sent itself.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
import sys
import types
from typing import Any

from torch import Tensor, nn

from ...locate.trace import OpTrace
from ...runtime.batches import named_tensors
from ...runtime.ranks.shards import local
from ...runtime.state import TrainState
from ...runtime.window import Window
from ..fixes.setting_change import SettingChange
from ..investigation import Investigation
from ..replays.changed_source import ChangedSource, NotRunnable
from ..replays.vehicles import Vehicle

__all__ = ["NotSendable", "Sources", "fingerprint", "packed", "unpacked"]


Sources = dict[tuple[str, str, str], ChangedSource]


class NotSendable(Exception):
    """Raised for a replay with an object that only this rank has."""


def packed(investigation: Investigation, value: Any) -> bytes:
    """Encode a request for the other ranks."""
    into = io.BytesIO()
    try:
        _Pickler(investigation, into).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise NotSendable(str(error)) from None
    return into.getvalue()


def unpacked(
    investigation: Investigation, data: bytes, has_same_batch: bool, known: Sources
) -> Any:
    """Decode a request with this rank's own objects; `known`: sources that were sent before."""
    try:
        return _Unpickler(investigation, data, has_same_batch, known).load()
    except (AttributeError, LookupError, ImportError, TypeError) as error:
        raise NotRunnable(str(error)) from None


def fingerprint(window: Window) -> tuple[Any, ...]:
    """A fingerprint of a batch; ranks that share a batch (tensor parallel) have the same."""
    found = []
    for batch in window.batches:
        for name, tensor in named_tensors(batch.value):
            own = local(tensor).detach()
            total = own.double().nan_to_num(1.0, 2.0, 3.0).sum() if own.numel() else 0.0
            found.append((name, tuple(own.shape), float(total)))
    return tuple(found)


class _Pickler(pickle.Pickler):
    def __init__(self, investigation: Investigation, into: io.BytesIO) -> None:
        super().__init__(into)
        self._about = investigation

    def persistent_id(self, value: Any) -> Any:
        investigation = self._about
        if isinstance(value, TrainState):
            return ("state",)
        if isinstance(value, OpTrace):
            return ("nothing",)
        if isinstance(value, Vehicle):
            return ("vehicle",) if value is investigation.vehicle else ("trial vehicle",)
        if isinstance(value, Window):
            return _name_of_window(investigation, value)
        if isinstance(value, Tensor):
            return _name_of_tensor(investigation, value)
        if isinstance(value, ChangedSource):
            return ("changed source", value.file, value.before, value.after)
        if isinstance(value, types.ModuleType):
            return ("module", value.__name__)
        if isinstance(value, nn.Module):
            raise NotSendable(f"a {type(value).__name__} of this rank")
        for i, scaler in enumerate(investigation.state.scalers):
            if value is scaler:
                return ("scaler", i)
        return None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, contextlib._GeneratorContextManager):
            made_by: Any = value.func
            place = (made_by.__module__, made_by.__qualname__)
            return _entered, (*place, value.args, value.kwds)
        if isinstance(value, SettingChange):
            return SettingChange.from_apply, (value.apply,)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, investigation: Investigation, data: bytes, has_same_batch: bool, known: Sources
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known
        self._about = investigation
        self._has_same_batch = has_same_batch

    def persistent_load(self, name: Any) -> Any:
        investigation, (kind, *rest) = self._about, name
        if kind == "state":
            return investigation.state
        if kind == "nothing":
            return None
        if kind == "vehicle":
            return investigation.vehicle
        if kind == "trial vehicle":
            return investigation.trial_vehicle()
        if kind == "window":
            return _windows(investigation)[rest[0]]
        if kind == "changed window":
            window, change, is_for_all = rest
            return window.with_values(change) if is_for_all or self._has_same_batch else window
        if kind == "changed source":
            return self._changed(*rest)
        if kind == "module":
            return sys.modules[rest[0]]
        if kind == "scaler":
            return list(investigation.state.scalers)[rest[0]]
        return next(
            s.tensor for s in investigation.state.sources() if (s.kind, s.name) == tuple(rest)
        )

    def _changed(self, file: str, before: str, after: str) -> ChangedSource:
        """Cache the functions of a file, because searching them takes long."""
        functions = next((k._functions for (f, _, _), k in self._known.items() if f == file), None)
        key = (file, before, after)
        if key not in self._known:
            self._known[key] = ChangedSource(*key, functions)
        return self._known[key]


def _entered(module: str, name: str, args: Any, kwargs: Any) -> Any:
    return getattr(importlib.import_module(module), name)(*args, **kwargs)


def _windows(investigation: Investigation) -> list[Window]:
    """All steps that can be requested, in the same order on every rank."""
    log = investigation.engine.log
    return [investigation.window, *reversed(log), *reversed(log.recent)]


def _name_of_window(investigation: Investigation, window: Window) -> Any:
    if window.changed_from is not None:
        return ("changed window", *window.changed_from)
    for i, known in enumerate(_windows(investigation)):
        if known is window:
            return ("window", i)
    raise NotSendable("a step that only this rank has")


def _name_of_tensor(investigation: Investigation, tensor: Tensor) -> Any:
    for source in investigation.state.sources():
        if source.tensor is tensor:
            return ("tensor", source.kind, source.name)
    raise NotSendable("a tensor that only this rank has")
