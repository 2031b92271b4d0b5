"""Redirects the file operations of a replay to its own files."""

from __future__ import annotations

import os
from typing import Any

from .box import Box, Rule, only_here
from .natives import NATIVES, Redirect

__all__ = ["RULES"]

_REASON = "what a replay writes goes to a temporary folder"


def _open(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    file, mode = _open_arguments(*args, **kwargs)
    is_written = bool(set(mode) & set("wax+"))
    if isinstance(file, int):
        if is_written and file not in box.own_fds:
            box.refuse(f"writing to the open descriptor {file}")
        return original(*args, **kwargs)
    if kwargs.get("opener") is not None:
        place = box.files.to_write(file, "w" not in mode) if is_written else box.files.to_read(file)
        rest = {k: v for k, v in kwargs.items() if k != "file"}
        made = original(place, *args[1:], **rest)
    elif is_written or box.files.is_touched:
        made = box.files.open(*args, **kwargs)
    else:
        made = original(*args, **kwargs)
    box.own_fds.add(made.fileno())
    return made


def _open_arguments(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> tuple[Any, str]:
    return file, mode


def _os_open(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    if kwargs.get("dir_fd") is not None:
        if _os_open_flags(*args, **kwargs) & _WRITING:
            box.refuse("opening a file for writing by a folder's descriptor")
        return original(*args, **kwargs)
    fd = box.files.os_open(*args, **kwargs)
    box.own_fds.add(fd)
    return fd


def _os_open_flags(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
    return flags


def _reading(name: str) -> Any:
    """The original as long as nothing was written, then the redirected function."""

    def act(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
        if not box.files.is_touched:
            return original(*args, **kwargs)
        return box.files.wrapper(name)(*args, **kwargs)

    return only_here(act)


def _changing(name: str) -> Any:
    def act(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
        if any(kwargs.get(k) is not None for k in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
            box.refuse(f"os.{name} by a folder's descriptor")
        if args and isinstance(args[0], int):
            if args[0] not in box.own_fds:
                box.refuse(f"os.{name} of the open descriptor {args[0]}")
            return original(*args, **kwargs)
        if name in _REMOVING and args:
            box.files.note_gone(args[0])
        return box.files.wrapper(name)(*args, **kwargs)

    return only_here(act)


def _rmtree(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    box.files.note_gone(args[0] if args else kwargs["path"])
    return box.files.rmtree(*args, **kwargs)


def _native(redirect: Redirect) -> Any:
    def act(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
        return redirect(box.files, original, args, kwargs)

    return only_here(act)


def _getcwdb(box: Box, original: Any, args: Any, kwargs: Any) -> bytes:
    return os.fsencode(box.files.getcwd())


def _close_temporary(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    """Patch a class that keeps `os.unlink` as a default argument, in a method that depends on the Python version."""
    if "unlink" in original.__code__.co_varnames:
        kwargs = {"unlink": os.unlink, **kwargs}
    return original(*args, **kwargs)


def _no_bytecode(box: Box, original: Any, args: Any, kwargs: Any) -> None:
    """Keep a module that is first imported in a replay from being compiled to a file."""


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_READING = (
    "stat", "lstat", "access", "readlink", "statvfs", "listxattr", "getxattr", "listdir", "scandir",
    "getcwd",
)  # fmt: skip
_REMOVING = ("remove", "unlink", "rmdir", "rename", "replace")
_CHANGING = (
    *_REMOVING, "mkdir", "link", "symlink", "chmod", "chown", "utime", "truncate", "setxattr",
    "removexattr",
)  # fmt: skip
_MEMBERS = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks)
_open_here = only_here(_open)
_OS = {
    **{n: _reading(n) for n in _READING},
    **{n: _changing(n) for n in _CHANGING},
    "open": only_here(_os_open),
    "getcwdb": only_here(_getcwdb),
    "chdir": only_here(lambda box, original, args, kwargs: box.files.chdir(*args, **kwargs)),
}
RULES: tuple[Rule, ...] = (
    Rule("builtins", "open", _open_here, _REASON),
    Rule("io", "open", _open_here, _REASON),
    Rule("tarfile", "bltn_open", _open_here, _REASON),
    Rule("bz2", "_builtin_open", _open_here, _REASON),
    Rule("lzma", "_builtin_open", _open_here, _REASON),
    Rule("tokenize", "_builtin_open", _open_here, _REASON),
    Rule("shutil", "rmtree", only_here(_rmtree), _REASON),
    *(Rule("os", n, make, _REASON, _MEMBERS) for n, make in _OS.items() if hasattr(os, n)),
    # Python 3.10 and 3.13 keep their own references.
    *(Rule("pathlib", f"_NormalAccessor.{n}", make, _REASON) for n, make in _OS.items() if n != "open"),
    Rule("pathlib", "_NormalAccessor.open", _open_here, _REASON),
    Rule("glob", "_StringGlobber.scandir", _OS["scandir"], _REASON),
    Rule("tempfile", "_TemporaryFileCloser.close", only_here(_close_temporary), _REASON),
    Rule("tempfile", "_TemporaryFileCloser.cleanup", only_here(_close_temporary), _REASON),
    Rule("importlib.machinery", "SourceFileLoader.set_data", only_here(_no_bytecode), _REASON),
    *(Rule(module, path, _native(redirect), _REASON) for module, path, redirect in NATIVES),
)  # fmt: skip
