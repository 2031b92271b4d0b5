"""Redirects what a script writes; it reads its own version back.

In a process that exists only to run the script once, every path that is written is redirected to a temporary folder and then
read from there. Everything else is read from its place. Writes that cannot be redirected (they bypass Python's functions but
not its audit events) are refused.
"""

from __future__ import annotations

import builtins
import errno
import glob
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from .listing import Entries, Entry

__all__ = ["RedirectedFiles", "free_places"]

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_AUDITED = {
    "os.mkdir": (0,), "os.remove": (0,), "os.rmdir": (0,), "os.truncate": (0,), "os.chmod": (0,),
    "os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,),
}  # fmt: skip


def free_places() -> tuple[str, ...]:
    """Paths that may be written: devices, and caches that can be rebuilt."""
    home = os.path.expanduser("~")
    caches = [os.path.join(home, name) for name in (".cache", ".triton", ".nv")]
    for name in ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", _COMPILED):
        if os.environ.get(name):
            caches.append(os.path.abspath(os.environ[name]))
    return ("/dev", "/proc", *caches)


class RedirectedFiles:
    """Redirects writing to `folder`; `install` is for good, the process must be a throwaway."""

    def __init__(self, folder: str, free: tuple[str, ...] | None = None) -> None:
        self._root = os.path.abspath(folder)
        self._free = (self._root, *(free_places() if free is None else free))
        self._gone: set[str] = set()
        """The user's paths that the script has removed in its view."""
        self._cwd = os.getcwd()
        self._is_at_home = True
        """Whether the real working directory is the one that the script expects."""
        self.on_read: Callable[[str], None] = _ignore
        self.real: dict[str, Any] = {}
        for name in _OS_NAMES:
            if hasattr(os, name):
                self.real[name] = getattr(os, name)
        self.real |= {"open_file": io.open, "rmtree": shutil.rmtree}

    def place(self, path: str) -> str:
        """The redirected location of a path."""
        return os.path.join(self._root, "files", self._full(path).lstrip(os.sep).replace(":", "_"))

    def _full(self, path: Any) -> str:
        name = os.fsdecode(os.fspath(path))
        if os.path.isabs(name):
            return os.path.normpath(name)
        return os.path.normpath(os.path.join(self._cwd, name))

    def _is_free(self, full: str) -> bool:
        return any(full == p or full.startswith(p + os.sep) for p in self._free)

    def _has(self, path: str) -> bool:
        try:
            self.real["lstat"](path)
        except (OSError, ValueError):
            return False
        return True

    def _is_gone(self, full: str) -> bool:
        while full not in self._gone:
            above = os.path.dirname(full)
            if above == full:
                return False
            full = above
        return True

    def exists(self, path: Any) -> bool:
        return self._has(self.to_read(path))

    def is_users(self, path: Any) -> bool:
        """Whether this is a file of the user that is not redirected yet."""
        place = self.to_read(self._full(path))
        return self._has(place) and not self._is_free(place)

    def to_read(self, path: Any) -> Any:
        """The location to read this path from."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path
        full = self._full(path)
        if self._is_free(full):
            return full
        place = self.place(full)
        if self._has(place) or self._is_gone(full):
            return place
        # The path as the script wrote it, so that an error shows the same.
        return path if self._is_at_home else full

    def to_write(self, path: Any, keeps: bool = True, with_contents: bool = False) -> Any:
        """The location to write this path to; with `keeps`, existing contents are copied first.

        Of a folder only the folder itself is copied, unless `with_contents`.
        """
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path
        full = self._full(path)
        if self._is_free(full):
            return full
        place = self.place(full)
        if self.exists(os.path.dirname(full)):
            self._make_folder(os.path.dirname(place))
        if keeps and not self._has(place) and self._has(full) and not self._is_gone(full):
            self._copy(full, place, with_contents)
        return place

    def _make_folder(self, place: str) -> None:
        if not self._has(place):
            self._make_folder(os.path.dirname(place))
            self.real["mkdir"](place)

    def _copy(self, full: str, place: str, with_contents: bool) -> None:
        if not stat.S_ISDIR(self.real["stat"](full).st_mode):
            opened = self.real["open_file"]
            with opened(full, "rb") as old, opened(place, "wb") as new:
                shutil.copyfileobj(old, new)
            return
        self._make_folder(place)
        for entry in self.real["scandir"](full) if with_contents else ():
            self._copy(entry.path, os.path.join(place, entry.name), True)

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int) or kwargs.get("opener") is not None:
            return self.real["open_file"](file, mode, *args, **kwargs)
        if not set(mode) & set("wax+"):
            self.on_read(self._full(file))
            return self.real["open_file"](self.to_read(file), mode, *args, **kwargs)
        if "x" in mode and self.exists(file):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)
        place = self.to_write(file, keeps="w" not in mode and "x" not in mode)
        return self.real["open_file"](place, mode, *args, **kwargs)

    def os_open(self, path: Any, flags: int, *args: Any, dir_fd: Any = None, **kwargs: Any) -> int:
        if dir_fd is not None:
            return int(self.real["open"](path, flags, *args, dir_fd=dir_fd, **kwargs))
        if not flags & _WRITING:
            return int(self.real["open"](self.to_read(path), flags, *args, **kwargs))
        if flags & os.O_EXCL and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return int(self.real["open"](self.to_write(path), flags, *args, **kwargs))

    def mkdir(self, path: Any, *args: Any, **kwargs: Any) -> None:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.real["mkdir"](self.to_write(path, keeps=False), *args, **kwargs)

    def _remover(self, name: str) -> Callable[..., None]:
        def remove(path: Any, *args: Any, dir_fd: Any = None, **kwargs: Any) -> None:
            full = self._full(path) if dir_fd is None else ""
            if dir_fd is not None or self._is_free(full):
                self.real[name](path, *args, dir_fd=dir_fd, **kwargs)
                return
            place = self.to_read(full)
            if place != full or not self._has(full):
                self.real[name](place, *args, **kwargs)
            self._gone.add(full)

        return remove

    def rmtree(self, path: Any, *args: Any, **kwargs: Any) -> None:
        full = self._full(path)
        place = self.to_read(full)
        if place != full or self._is_free(full) or not self._has(full):
            self.real["rmtree"](place, *args, **kwargs)
        self._gone.add(full)

    def _mover(self, name: str) -> Callable[..., None]:
        def move(src: Any, dst: Any, **kwargs: Any) -> None:
            if any(v is not None for v in kwargs.values()):
                self.real[name](src, dst, **kwargs)
                return
            full = self._full(src)
            if self._has(self.to_read(full)):
                src = self.to_write(full, with_contents=True)
            self.real[name](src, self.to_write(dst, keeps=False))
            self._gone.add(full)

        return move

    def _linker(self, name: str) -> Callable[..., None]:
        def link(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            if name == "link":
                src = self.to_write(src)
            self.real[name](src, self.to_write(dst, keeps=False), *args, **kwargs)

        return link

    def listdir(self, path: Any = ".") -> Any:
        if isinstance(path, (int, bytes)):
            return self.real["listdir"](path)
        return [e.name for e in self.scandir(path)]

    def scandir(self, path: Any = ".") -> Any:
        if isinstance(path, (int, bytes)):
            return self.real["scandir"](path)
        full = self._full(path)
        place = self.to_read(full)
        found = {e.name: e for e in self.real["scandir"](place)}
        if place != full and self._has(full) and not self._is_gone(full):
            for entry in self.real["scandir"](full):
                if os.path.join(full, entry.name) not in self._gone:
                    found.setdefault(entry.name, entry)
        elif place == full:
            found = {n: e for n, e in found.items() if os.path.join(full, n) not in self._gone}
        return Entries([Entry(e, os.fspath(path)) for e in found.values()])

    def chdir(self, path: Any) -> None:
        full = self._full(path) if not isinstance(path, int) else ""
        self.real["chdir"](self.to_read(path))
        self._cwd = full or self.real["getcwd"]()
        self._is_at_home = self._cwd == self.real["getcwd"]()

    def getcwd(self) -> str:
        return self._cwd

    def _redirected(self, name: str, redirect: Callable[[Any], Any]) -> Callable[..., Any]:
        """The real function, applied to the path that `to_read` or `to_write` returns."""
        real = self.real[name]

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is None:
                path = redirect(path)
            return real(path, *args, **kwargs)

        return call

    def install(self) -> None:
        """Redirect until this process ends."""
        os.makedirs(os.path.join(self._root, "files"), exist_ok=True)
        tempfile.tempdir = None
        wrappers = self._wrappers()
        accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 keeps its own references
        for name, wrapper in wrappers.items():
            setattr(os, name, wrapper)
            if hasattr(accessor, name):
                setattr(accessor, name, staticmethod(self.open if name == "open" else wrapper))
        for flagged in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            flagged.update(w for n, w in wrappers.items() if self.real[n] in flagged)
        globber: Any = vars(glob).get(
            "_StringGlobber"
        )  # Python 3.13 keeps a reference to one function
        if globber is not None and globber.__dict__.get("scandir") is not None:
            globber.scandir = staticmethod(self.scandir)
        builtins.open = self.open
        io.open = self.open
        for module, name in _KEEPERS:
            if module in sys.modules:
                setattr(sys.modules[module], name, self.open)
        shutil.rmtree = self.rmtree  # type: ignore[assignment]
        self._install_imports()
        sys.addaudithook(self._audit)

    def _wrappers(self) -> dict[str, Any]:
        wrappers: dict[str, Any] = {
            "open": self.os_open, "mkdir": self.mkdir, "listdir": self.listdir,
            "scandir": self.scandir, "chdir": self.chdir, "getcwd": self.getcwd,
        }  # fmt: skip
        wrappers |= {n: self._redirected(n, self.to_read) for n in _READERS if n in self.real}
        wrappers |= {n: self._redirected(n, self.to_write) for n in _WRITERS if n in self.real}
        wrappers |= {n: self._remover(n) for n in ("remove", "unlink", "rmdir")}
        wrappers |= {n: self._mover(n) for n in ("rename", "replace")}
        wrappers |= {n: self._linker(n) for n in ("link", "symlink") if n in self.real}
        return wrappers

    def _install_imports(self) -> None:
        """Compile a module whose file was redirected from its new file, never from a cache."""
        loader: Any = importlib.machinery.SourceFileLoader
        original = loader.get_data

        def get_data(this: Any, path: str) -> bytes:
            if path.endswith(".pyc"):
                source = _source_of(path)
                if source is not None and self._has(self.place(source)):
                    raise OSError(errno.ENOENT, "changed for this run", path)
            elif self._has(self.place(path)):
                self.on_read(path)
                path = self.place(path)
            data: bytes = original(this, path)
            return data

        loader.get_data = get_data

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        """The last line of defense: refuse any write outside, whoever attempts it."""
        if event == "open":
            path, _, flags = args
            if isinstance(path, int) or path is None or not flags & _WRITING:
                return
            self._refuse(path, -1)
        elif event in _AUDITED:
            for i in _AUDITED[event]:
                folder = args[-1] if isinstance(args[-1], int) and event != "os.truncate" else -1
                self._refuse(args[i], folder)

    def _refuse(self, path: Any, folder: int) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.fsdecode(os.fspath(path))
        if folder >= 0 and not os.path.isabs(name):
            try:
                name = os.path.join(self.real["readlink"](f"/proc/self/fd/{folder}"), name)
            except OSError:
                return
        elif not os.path.isabs(name):
            name = os.path.join(self.real["getcwd"](), name)
        if not self._is_free(os.path.normpath(name)):
            raise PermissionError(
                errno.EACCES, "kept from being changed in a run that is only a trial", name
            )


_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
_READERS = ("stat", "lstat", "access", "readlink", "statvfs", "listxattr", "getxattr")
_WRITERS = ("chmod", "chown", "utime", "truncate", "setxattr", "removexattr")
_OS_NAMES = (
    *_READERS, *_WRITERS, "open", "mkdir", "remove", "unlink", "rmdir", "rename", "replace", "link",
    "symlink", "listdir", "scandir", "chdir", "getcwd",
)  # fmt: skip
_KEEPERS = (
    ("tarfile", "bltn_open"), ("bz2", "_builtin_open"), ("lzma", "_builtin_open"),
    ("tokenize", "_builtin_open"),
)  # fmt: skip
"""Modules of the standard library that have `open` under another name."""


def _source_of(cache: str) -> str | None:
    try:
        return importlib.util.source_from_cache(cache)
    except ValueError:
        return None


def _ignore(path: str) -> None:
    """Reading needs no permission."""
