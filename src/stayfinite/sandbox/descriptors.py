"""Keeps a replay from using file descriptors that were open before it.

`os.write` is muted on stdout and stderr, and refused on other such descriptors. A file object that was opened before the replay
writes without a Python function that could be patched; `streams` of `computing_only` covers these.
"""

from __future__ import annotations

import os
from typing import Any

from .box import Box, Rule, only_here

__all__ = ["RULES"]

_REASON = "a replay leaves alone what was open before it"
_STANDARD = (1, 2)
_FIRST = (
    "pwrite", "pwritev", "ftruncate", "fchmod", "fchown", "read", "readv", "lseek", "sendfile",
    "close", "dup", "posix_fallocate", "set_blocking", "lockf", "eventfd_write",
)  # fmt: skip
_SECOND = ("dup2", "copy_file_range", "splice")
_ALWAYS = ("fchdir", "closerange", "mkfifo", "mknod", "chroot")


def _size(data: Any) -> int:
    return memoryview(data).nbytes


def _write(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    if args[0] in _STANDARD:
        return _size(args[1])
    return _on_own(box, original, args, 0, "writing to")


def _writev(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    if args[0] in _STANDARD:
        return sum(map(_size, args[1]))
    return _on_own(box, original, args, 0, "writing to")


def _on_own(box: Box, original: Any, args: Any, index: int, what: str, **kwargs: Any) -> Any:
    fd = args[index] if len(args) > index else None
    if fd not in box.own_fds:
        box.refuse(f"{what} the open descriptor {fd}")
    return original(*args, **kwargs)


def _at(name: str, index: int) -> Any:
    def act(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
        result = _on_own(box, original, args, index, f"os.{name} of", **kwargs)
        if name == "close":
            box.own_fds.discard(args[0])
        elif name == "dup":
            box.own_fds.add(result)
        return result

    return only_here(act)


def _never(name: str) -> Any:
    return only_here(lambda box, original, args, kwargs: box.refuse(f"os.{name}"))


def _makes(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    """Descriptors of the replay itself."""
    made = original(*args, **kwargs)
    box.own_fds.update(made if isinstance(made, tuple) else (made,))
    return made


_OS = {
    "write": only_here(_write),
    "writev": only_here(_writev),
    **{n: _at(n, 0) for n in _FIRST},
    **{n: _at(n, 1) for n in _SECOND},
    **{n: _never(n) for n in _ALWAYS},
    **{n: only_here(_makes) for n in ("pipe", "pipe2", "memfd_create")},
}
_MEMBERS = (os.supports_dir_fd, os.supports_fd)
RULES = tuple(Rule("os", n, make, _REASON, _MEMBERS) for n, make in _OS.items() if hasattr(os, n))
