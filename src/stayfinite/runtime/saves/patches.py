"""Patches of the functions that write checkpoints, while a save gate is open."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import threading
from collections.abc import Callable
from typing import Any

import torch

from ...patches import provenance as _provenance
from ...patches.firewall import Firewall
from ...patches.imports import ImportPatch, patch_when_imported, renew
from ...patches.manager import Subscribers, Subscription, Target, close_all, subscribe
from ...patches.provenance import provenance
from ...patches.warning_frames import skipped_by_warnings
from ...recover.atomic import atomic_path
from ...saying import say
from .gate import SaveGate, is_ungated, refused_name, ungated

__all__ = ["SavePatches"]

_REASON = "a checkpoint that is not finite is written beside the good one, not over it"
_DCP = "torch.distributed.checkpoint.state_dict_saver"
_LIGHTNING = ("lightning.fabric.utilities.cloud_io", "lightning_fabric.utilities.cloud_io")


class SavePatches:
    """Opens a gate in this process; `close` closes it."""

    def __init__(self, gate: SaveGate) -> None:
        self.gate = gate
        self.firewall = Firewall("the save gate", self.close)
        self._subscriptions: list[Subscription | ImportPatch] = []
        self._renames: list[Subscription] = []
        self._add(torch, "save", _torch_save)
        importlib.import_module("safetensors.torch")  # small, and a script may import it later
        self._late("safetensors.torch", "save_file", _save_file)
        for name in ("save", "async_save"):
            self._late(_DCP, name, _dcp_save)
        for home in _LIGHTNING:
            self._late(home, "_atomic_save", _lightning_save)
        _provenance.install()  # a refused state is read from its other path
        provenance.stand_ins.add(gate)
        renew()

    def _add(self, owner: Any, name: str, make: Any) -> None:
        self._subscriptions.append(subscribe(Target(owner, name, _REASON, "saves"), make, self))

    def _late(self, module: str, name: str, make: Any) -> None:
        self._subscriptions.append(patch_when_imported(module, name, _REASON, "saves", make, self))

    def follow_renames(self) -> None:
        """After a bad state was written under another name: a rename of the file must still work, and making room for it must
        not delete the last good one.
        """
        if not self._renames:
            for owner, name, make in (
                (os, "rename", _rename), (os, "replace", _rename), (os, "remove", _remove),
                (os, "unlink", _remove), (shutil, "rmtree", _remove),
            ):  # fmt: skip
                self._renames.append(subscribe(Target(owner, name, _REASON, "saves"), make, self))

    def close(self) -> None:
        close_all(self._subscriptions)
        close_all(self._renames)
        if self.gate in provenance.stand_ins:
            _provenance.remove()
            provenance.stand_ins.discard(self.gate)
        self.gate.close()

    @skipped_by_warnings
    def save(
        self,
        value: Any,
        path: Any,
        write: Callable[[Any], Any],
        agree: Callable[[bool], bool] = bool,
    ) -> Any:
        """Write the state to its path, or to the other name if it is bad."""
        name = os.fspath(path)
        findings = self.firewall.call(self.gate.findings, value, fallback=[])
        if not agree(bool(findings)):
            with ungated():
                result = write(path)
            self._note_good(name, result)
            return result
        self.follow_renames()
        with ungated():
            return self.gate.refuse(name, findings, write)

    def _note_good(self, name: str, result: Any) -> None:
        """Count a checkpoint that is written in the background as good once it is complete."""
        future = getattr(result, "upload_completion", result)
        if not hasattr(future, "add_done_callback"):
            self.firewall.call(self.gate.note_good, name)
            return

        def done(finished: Any) -> None:
            if not finished.cancelled() and finished.exception() is None:
                self.firewall.call(self.gate.note_good, name)

        future.add_done_callback(done)


def _gate(subscribers: Subscribers) -> SavePatches | None:
    """The most recent gate of this thread's training."""
    if is_ungated():
        return None
    me = threading.get_ident()
    for each in reversed(subscribers):
        if each.gate.thread_id == me:
            found: SavePatches = each
            return found
    return None


def _torch_save(original: Any, subscribers: Subscribers) -> Any:
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        gate = _gate(subscribers)
        if gate is None:
            return original(obj, f, *args, **kwargs)
        if isinstance(f, (str, os.PathLike)):
            return gate.save(obj, f, _whole_writer(original, obj, args, kwargs))
        name = getattr(f, "name", None)
        if isinstance(name, str) and hasattr(f, "fileno"):
            return _save_into(gate, original, obj, f, args, kwargs)
        return original(obj, f, *args, **kwargs)

    return save


@skipped_by_warnings
def _whole_writer(
    original: Any, first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Any], Any]:
    def write(path: Any) -> Any:
        with _whole(path) as part:
            return original(first, part, *args, **kwargs)

    return write


@skipped_by_warnings
def _save_into(
    gate: SavePatches, original: Any, obj: Any, file: Any, args: Any, kwargs: Any
) -> Any:
    """Save through a file that is open, and empty, already: a bad state is written to another file."""
    findings = gate.firewall.call(gate.gate.findings, obj, fallback=[])
    if not findings:
        result = original(obj, file, *args, **kwargs)
        file.flush()
        gate.firewall.call(gate.gate.keep, file.name)
        gate.firewall.call(gate.gate.note_good, file.name)
        return result
    gate.gate.put_back(file)
    gate.follow_renames()
    with ungated():
        return gate.gate.refuse(file.name, findings, _whole_writer(original, obj, args, kwargs))


class _whole:
    """`atomic_path`, or the path itself if replacing it would change what it is.

    An existing file keeps its mode. If the save raises, a new file has the same contents as without us, and an existing file is
    unchanged.
    """

    def __init__(self, path: Any) -> None:
        self._path = path
        self._part = ""
        self._inner: Any = None

    def __enter__(self) -> Any:
        if not _may_be_replaced(self._path):
            return self._path
        self._inner = atomic_path(self._path)
        self._part = str(self._inner.__enter__())
        return self._part

    def __exit__(self, *exc: Any) -> Any:
        if self._inner is None:
            return None
        is_there = os.path.exists(self._path)
        if is_there and exc[0] is None:
            shutil.copymode(self._path, self._part)
        elif exc[0] is not None and not is_there and os.path.exists(self._part):
            os.replace(self._part, os.path.realpath(self._path))
        return self._inner.__exit__(*exc)


def _may_be_replaced(path: Any) -> bool:
    """Whether it is a regular file with one name, in a writable folder."""
    folder = os.path.dirname(os.path.realpath(path))
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    if not os.path.exists(path):
        return True
    return os.path.isfile(path) and os.stat(path).st_nlink == 1


def _save_file(original: Any, subscribers: Subscribers) -> Any:
    def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        gate = _gate(subscribers)
        if gate is None:
            return original(tensors, filename, *args, **kwargs)
        return gate.save(tensors, filename, _whole_writer(original, tensors, args, kwargs))

    return save_file


def _dcp_save(original: Any, subscribers: Subscribers) -> Any:
    def save(state_dict: Any, *args: Any, checkpoint_id: Any = None, **kwargs: Any) -> Any:
        def write(path: Any) -> Any:
            return original(state_dict, *args, checkpoint_id=path, **kwargs)

        gate = _gate(subscribers)
        if gate is None or checkpoint_id is None or kwargs.get("storage_writer") is not None:
            return write(checkpoint_id)
        agree = functools.partial(_any_rank, kwargs)
        return gate.save(_states_of(state_dict), checkpoint_id, write, agree)

    return save


def _states_of(value: Any) -> Any:
    """The objects whose state DCP would save."""
    if not isinstance(value, dict):
        return value
    return {k: v.state_dict() if hasattr(v, "state_dict") else v for k, v in value.items()}


def _any_rank(kwargs: dict[str, Any], is_bad: bool) -> bool:
    """Each rank writes its shards to one checkpoint, which is bad if it is bad on any rank."""
    dist = torch.distributed
    if kwargs.get("no_dist") or not dist.is_available() or not dist.is_initialized():
        return is_bad
    found: list[Any] = [None] * dist.get_world_size(kwargs.get("process_group"))
    dist.all_gather_object(found, is_bad, group=kwargs.get("process_group"))
    return any(found)


def _lightning_save(original: Any, subscribers: Subscribers) -> Any:
    def _atomic_save(checkpoint: Any, filepath: Any) -> Any:
        gate = _gate(subscribers)
        if gate is None:
            return original(checkpoint, filepath)
        return gate.save(checkpoint, filepath, lambda path: original(checkpoint, path))

    return _atomic_save


def _remove(original: Any, subscribers: Subscribers) -> Any:
    """Protect only the last good checkpoint, and only until the next good one."""

    def remove(path: Any, *args: Any, **kwargs: Any) -> Any:
        if any(each.gate.must_stay(path) for each in subscribers):
            say(
                f"stayfinite: {os.fsdecode(path)} was not deleted: it is the last good checkpoint, and "
                "the one after it was held back"
            )
            return None
        return original(path, *args, **kwargs)

    return remove


def _rename(original: Any, subscribers: Subscribers) -> Any:
    """Follow a rename of a temporary file: the bad state stays refused."""

    def rename(src: Any, dst: Any, **kwargs: Any) -> Any:
        for each in subscribers:
            moved = _diverted(each.gate, src)
            if moved is not None:
                original(moved, refused_name(os.fspath(dst)), **kwargs)
                del each.gate.refused[os.path.abspath(src)]
                each.gate.refused[os.path.abspath(dst)] = refused_name(os.fspath(dst))
                return None
        return original(src, dst, **kwargs)

    return rename


def _diverted(gate: SaveGate, src: Any) -> str | None:
    if not isinstance(src, (str, os.PathLike)) or isinstance(os.fspath(src), bytes):
        return None
    where = os.path.abspath(src)
    return gate.refused.get(where) if not os.path.exists(where) else None
