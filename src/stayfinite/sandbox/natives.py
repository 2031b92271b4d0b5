"""Redirects writers that do not use Python's `open`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import urllib.parse
from collections.abc import Callable
from typing import Any

from ..patches import Target, subscribe
from .files import RedirectedFiles

__all__ = ["NATIVES", "redirect_natives"]

_LARGE_DATABASE = 1 << 28

Redirect = Callable[[RedirectedFiles, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def _writer(files: RedirectedFiles, original: Any, args: Any, kwargs: Any) -> Any:
    this, *rest = args
    if rest and isinstance(rest[0], (str, bytes)):
        rest[0] = files.to_write(rest[0], keeps=False)
    return original(this, *rest, **kwargs)


def _reader(files: RedirectedFiles, original: Any, args: Any, kwargs: Any) -> Any:
    this, *rest = args
    if rest and isinstance(rest[0], (str, bytes)):
        rest[0] = files.to_read(rest[0])
    return original(this, *rest, **kwargs)


def _database(files: RedirectedFiles, original: Any, args: Any, kwargs: Any) -> Any:
    """Redirect SQLite files: copy them before they are opened, because opening may write.

    A large one is probably data, so it is opened read-only.
    """
    kwargs = dict(kwargs)
    database, *rest = args or [kwargs.pop("database")]
    name, query = os.fsdecode(database), ""
    if kwargs.get("uri") and name.startswith("file:"):
        address = urllib.parse.urlsplit(name)
        name, query = urllib.parse.unquote(address.path), address.query
    if name in ("", ":memory:") or "mode=memory" in query:
        return original(database, *rest, **kwargs)
    is_large = files.is_users(name) and os.stat(name).st_size > _LARGE_DATABASE
    if is_large or "mode=ro" in query or "immutable=1" in query:
        query = query or "mode=ro"
        place = files.to_read(name)
    else:
        place = files.to_write(name)
    if query:
        kwargs["uri"] = True
        place = f"file:{urllib.parse.quote(place)}?{query}"
    return original(place, *rest, **kwargs)


def _serialize(files: RedirectedFiles, original: Any, args: Any, kwargs: Any) -> Any:
    kwargs = dict(kwargs)
    tensors, *rest = args
    filename = rest.pop(0) if rest else kwargs.pop("filename")
    return original(tensors, str(files.to_write(filename, keeps=False)), *rest, **kwargs)


def _memory_map(files: RedirectedFiles, original: Any, args: Any, kwargs: Any) -> Any:
    """Open a writable memory map as copy-on-write, so that large files need no copy."""
    kwargs = dict(kwargs)
    args = list(args)  # the class, filename, dtype, mode, …
    filename = args[1] if len(args) > 1 else kwargs["filename"]
    mode = args[3] if len(args) > 3 else kwargs.get("mode", "r+")
    is_written = mode in ("r+", "readwrite") and not hasattr(filename, "read")
    if is_written and files.is_users(filename):
        if len(args) > 3:
            args[3] = "c"
        else:
            kwargs["mode"] = "c"
    return original(*args, **kwargs)


def _mapped_storage(files: RedirectedFiles, original: Any, args: Any, kwargs: Any) -> Any:
    """The same for torch's own maps."""
    kwargs = dict(kwargs)
    filename, *rest = args or [kwargs.pop("filename")]
    shared = rest.pop(0) if rest else kwargs.pop("shared", False)
    if shared and files.is_users(filename):
        shared = False
    elif shared:
        filename = files.to_write(filename)
    return original(str(files.to_read(filename)), shared, *rest, **kwargs)


NATIVES: tuple[tuple[str, str, Redirect], ...] = (
    ("torch._C", "PyTorchFileWriter.__init__", _writer),
    ("torch._C", "PyTorchFileReader.__init__", _reader),
    ("torch._C", "ScriptModule.save", _writer),
    ("torch._C", "ScriptFunction.save", _writer),
    ("torch", "from_file", _mapped_storage),
    ("torch", "UntypedStorage.from_file", _mapped_storage),
    ("sqlite3", "connect", _database),
    ("safetensors", "serialize_file", _serialize),
    ("safetensors.torch", "serialize_file", _serialize),  # keeps its own reference
    ("safetensors.numpy", "serialize_file", _serialize),
    ("numpy", "memmap.__new__", _memory_map),
)
"""Module, name within it, and how its call is redirected."""

_STORES: tuple[tuple[str, str, Redirect], ...] = (
    ("torch._C._distributed_c10d", "FileStore.__init__", _writer),
)
"""The rendezvous file of several ranks; each trial has its own."""

_NEEDED = {"sqlite3": "_sqlite3", "numpy": "numpy", "safetensors.numpy": "numpy"}


def redirect_natives(files: RedirectedFiles) -> None:
    """Redirect checkpoints of torch and safetensors, memory maps, SQLite files and rendezvous files, permanently."""
    for module, path, redirect in (*NATIVES, *_STORES):
        needed = _NEEDED.get(module)
        if needed is not None and importlib.util.find_spec(needed) is None:
            continue
        try:
            owner: Any = importlib.import_module(module)
        except ImportError:
            continue  # for example, a torch that was built without distributed
        *between, name = path.split(".")
        for part in between:
            owner = getattr(owner, part)
        target = Target(owner, name, "what a tried-out script writes is redirected", "sandbox")
        subscribe(target, _for_good(redirect), files)


def _for_good(redirect: Redirect) -> Callable[[Callable[..., Any], Any], Callable[..., Any]]:
    def make(original: Callable[..., Any], subscribers: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return redirect(subscribers[-1], original, args, kwargs)

        return call

    return make
