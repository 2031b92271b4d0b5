"""Writers that pass Python's own `open` by, redirected as well."""

from __future__ import annotations

import importlib
import importlib.util
import os
import urllib.parse
from typing import Any

import torch

from .files import RedirectedFiles

__all__ = ["redirect_natives"]

_LARGE_DATABASE = 1 << 28


def redirect_natives(files: RedirectedFiles) -> None:
    """Checkpoints of torch and safetensors, memory maps, SQLite files, rendezvous files."""
    core: Any = torch._C
    core.PyTorchFileWriter = _first_argument(core.PyTorchFileWriter, files, is_written=True)
    core.PyTorchFileReader = _first_argument(core.PyTorchFileReader, files, is_written=False)
    _databases(files)
    _stores(files)
    _scripted(files)
    _safetensors(files)
    _memory_maps(files)
    _mapped_storages(files)


def _first_argument(original: Any, files: RedirectedFiles, is_written: bool) -> Any:
    def make(file: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, (str, bytes)):
            file = files.to_write(file, keeps=False) if is_written else files.to_read(file)
        return original(file, *args, **kwargs)

    return make


def _databases(files: RedirectedFiles) -> None:
    """SQLite files: copied before they are opened, since whoever opens one may write to it.

    A large one is most likely the data; it is opened for reading only.
    """
    if importlib.util.find_spec("_sqlite3") is None:
        return
    import sqlite3

    original: Any = sqlite3.connect

    def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
        name = os.fsdecode(database)
        query = ""
        if kwargs.get("uri") and name.startswith("file:"):
            address = urllib.parse.urlsplit(name)
            name, query = urllib.parse.unquote(address.path), address.query
        if name in ("", ":memory:") or "mode=memory" in query:
            return original(database, *args, **kwargs)
        is_large = files.is_users(name) and os.stat(name).st_size > _LARGE_DATABASE
        if is_large or "mode=ro" in query or "immutable=1" in query:
            query = query or "mode=ro"
            place = files.to_read(name)
        else:
            place = files.to_write(name)
        if query:
            kwargs["uri"] = True
            place = f"file:{urllib.parse.quote(place)}?{query}"
        return original(place, *args, **kwargs)

    sqlite3.connect = connect


def _stores(files: RedirectedFiles) -> None:
    """The file by which several ranks meet; each run has one of its own."""
    if not torch.distributed.is_available():
        return
    meeting: Any = importlib.import_module("torch.distributed.rendezvous")
    store = _first_argument(meeting.FileStore, files, is_written=True)
    meeting.FileStore = store
    distributed: Any = torch.distributed
    distributed.FileStore = store


def _scripted(files: RedirectedFiles) -> None:
    jit: Any = torch.jit
    cls = jit.RecursiveScriptModule
    original = cls.save

    def save(module: Any, f: Any, **kwargs: Any) -> Any:
        return original(module, files.to_write(f, keeps=False), **kwargs)

    cls.save = save


def _safetensors(files: RedirectedFiles) -> None:
    """Before `safetensors.torch` is imported, which takes the function's reference."""
    package: Any = importlib.import_module("safetensors")
    original = package.serialize_file

    def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        return original(tensors, str(files.to_write(filename, keeps=False)), *args, **kwargs)

    package.serialize_file = serialize_file
    for name in ("torch", "numpy"):
        if importlib.util.find_spec(f"safetensors.{name}") and (
            name != "numpy" or importlib.util.find_spec("numpy")
        ):
            importlib.import_module(f"safetensors.{name}").serialize_file = serialize_file  # type: ignore[attr-defined]


def _memory_maps(files: RedirectedFiles) -> None:
    """A map for writing becomes a map whose changes stay in memory: no large file is copied."""
    if importlib.util.find_spec("numpy") is None:
        return
    import numpy as np

    cls: Any = np.memmap
    original = cls.__new__

    def __new__(
        subtype: Any, filename: Any, dtype: Any = np.uint8, mode: str = "r+", *args: Any, **kw: Any
    ) -> Any:
        if mode in ("r+", "readwrite") and not hasattr(filename, "read"):
            mode = "c" if files.is_users(filename) else mode
        return original(subtype, filename, dtype, mode, *args, **kw)

    cls.__new__ = __new__


def _mapped_storages(files: RedirectedFiles) -> None:
    """The same for torch's own maps."""

    def wrapped(original: Any) -> Any:
        def from_file(filename: Any, shared: Any = False, *args: Any, **kwargs: Any) -> Any:
            if shared and files.is_users(filename):
                shared = False
            elif shared:
                filename = files.to_write(filename)
            return original(str(files.to_read(filename)), shared, *args, **kwargs)

        return from_file

    tensors: Any = torch
    tensors.from_file = wrapped(torch.from_file)
    storage: Any = torch.UntypedStorage
    storage.from_file = staticmethod(wrapped(storage.from_file))
