"""Files that a checked script writes go to a shadow folder: nothing of the user's is changed.

Reads see the shadow where there is one, so that a script can read back what it has just written.
Folders that it makes are taken away again; what it would delete or rename stays.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..observe.imports import wrap_when_imported

__all__ = ["Shadow"]

_WRITING = set("wax+")


class Shadow:
    """The shadow folder, and the functions that are led to it while `held` is entered."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, str] = {}
        self._made: list[str] = []
        self._number = 0
        self.written: set[str] = set()
        """The files that it would have written."""
        # Asked for now: tempfile looks for its folder by writing to it, under a lock.
        temporary = tempfile.gettempdir() + os.sep
        is_inside = os.getcwd().startswith(temporary)
        self._free = ("/dev/", "/proc/", str(folder), *(() if is_inside else (temporary,)))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Writes are held back from here on; made folders are removed at the end."""
        undo: list[Callable[[], None]] = []

        def patch(home: Any, name: str, make: Callable[[Any], Any]) -> None:
            original = getattr(home, name)
            setattr(home, name, make(original))
            undo.append(lambda: setattr(home, name, original))

        patch(builtins, "open", self._open)
        patch(io, "open", self._open)
        patch(os, "mkdir", self._mkdir)
        for name in ("remove", "unlink", "rmdir"):
            patch(os, name, self._delete)
        for name in ("rename", "replace"):
            patch(os, name, self._move)
        patch(shutil, "rmtree", self._rmtree)
        patch(torch, "save", lambda original: self._to_path(original, 1))
        wrap_when_imported("safetensors.torch", "save_file", lambda f: self._to_path(f, 1))
        wrap_when_imported("safetensors.torch", "save_model", lambda f: self._to_path(f, 1))
        try:
            yield
        finally:
            while undo:
                undo.pop()()
            for path in reversed(self._made):
                with contextlib.suppress(OSError):
                    os.rmdir(path)

    # -- paths -------------------------------------------------------------------------------------

    def _key(self, path: Any) -> str | None:
        """The absolute path of a file that is the user's; None for what is not our business."""
        if isinstance(path, int) or not isinstance(path, (str, bytes, os.PathLike)):
            return None
        full = os.path.abspath(os.fsdecode(path))
        return None if full.startswith(self._free) else full

    def _to_read(self, path: Any) -> Any:
        key = self._key(path)
        return self._known.get(key, path) if key is not None else path

    def _to_write(self, path: Any, keeps: bool = False) -> Any:
        """Where to write instead; `keeps`: what is there already is still wanted."""
        key = self._key(path)
        if key is None:
            return path
        if key not in self._known:
            self._number += 1
            self.written.add(key)
            shadow = self._folder / f"{self._number}-{os.path.basename(key)}"
            if keeps and os.path.isfile(key):
                shutil.copyfile(key, shadow)
            self._known[key] = str(shadow)
        return self._known[key]

    # -- the functions -----------------------------------------------------------------------------

    def _open(self, original: Any) -> Any:
        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(mode, str) and _WRITING & set(mode):
                if "x" in mode and self._key(file) is not None and os.path.exists(file):
                    return original(file, mode, *args, **kwargs)  # raises, as it would
                where = self._to_write(file, keeps="w" not in mode and "x" not in mode)
                return original(where, mode.replace("x", "w"), *args, **kwargs)
            return original(self._to_read(file), mode, *args, **kwargs)

        return open

    def _to_path(self, original: Any, at: int) -> Any:
        """For a function whose argument number `at` is the file to write."""

        def save(*args: Any, **kwargs: Any) -> Any:
            for name in ("f", "filename"):
                if name in kwargs:
                    kwargs[name] = self._to_write(kwargs[name])
            if len(args) > at:
                args = (*args[:at], self._to_write(args[at]), *args[at + 1 :])
            return original(*args, **kwargs)

        return save

    def _mkdir(self, original: Any) -> Any:
        def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
            original(path, *args, **kwargs)
            if self._key(path) is not None:
                self._made.append(os.path.abspath(os.fsdecode(path)))

        return mkdir

    def _delete(self, original: Any) -> Any:
        def delete(path: Any, *args: Any, **kwargs: Any) -> None:
            key = self._key(path)
            if key is None or key in self._made:
                original(path, *args, **kwargs)
            else:
                self._known.pop(key, None)

        return delete

    def _move(self, original: Any) -> Any:
        def move(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
            a, b = self._key(source), self._key(target)
            if a is None and b is None:
                original(source, target, *args, **kwargs)
            elif b is not None:
                self._known[b] = self._known.pop(a, a) if a is not None else os.fspath(source)

        return move

    def _rmtree(self, original: Any) -> Any:
        def rmtree(path: Any, *args: Any, **kwargs: Any) -> None:
            if self._key(path) is None:
                original(path, *args, **kwargs)

        return rmtree
