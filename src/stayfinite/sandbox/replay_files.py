"""Files of a replay: in a temporary folder, deleted at the end.

They are redirected as for a script on trial, with three differences because a live training surrounds the replay: only the
replaying thread is affected, the working directory of the process never changes, and only devices without memory may be written.
"""

from __future__ import annotations

import functools
import os
import tempfile
import uuid
from collections.abc import Callable
from typing import Any

from .files import RedirectedFiles

__all__ = ["ReplayFiles"]

_FREE = ("/dev/null", "/dev/zero", "/dev/full")
_DEVICES = ("/dev/", "/proc/", "/sys/")


class ReplayFiles(RedirectedFiles):
    """The files of one replay; the folder is made at the first write."""

    def __init__(
        self,
        refuse: Callable[[str], Any],
        on_write: Callable[[str], None],
        outside: Callable[..., Any],
    ) -> None:
        """`outside(function, …)` calls our own function as if there were no replay."""
        name = f"stayfinite-replay-{uuid.uuid4().hex}"
        super().__init__(os.path.join(tempfile.gettempdir(), name), _FREE)
        self.real = {n: functools.partial(outside, f) for n, f in self.real.items()}
        self._refuse_call = refuse
        self._on_write = on_write
        self._pid = os.getpid()
        self.is_touched = False
        """Whether anything is redirected so far."""

    def to_read(self, path: Any) -> Any:
        return super().to_read(path) if self.is_touched else path

    def to_write(self, path: Any, keeps: bool = True, with_contents: bool = False) -> Any:
        if isinstance(path, (str, bytes, os.PathLike)):
            full = self._full(path)
            if full.startswith(_DEVICES) and not self._is_free(full):
                self._refuse_call(f"writing to {full}")
            if not self._is_free(full):
                self._touch(full)
        return super().to_write(path, keeps, with_contents)

    def _touch(self, full: str) -> None:
        if not self._has(self._root):
            self.real["mkdir"](self._root, 0o700)
        self.is_touched = True
        self._on_write(full)

    def wrapper(self, name: str) -> Callable[..., Any]:
        """The replacement of `os.name`."""
        found: Callable[..., Any] = self._made[name]
        return found

    @functools.cached_property
    def _made(self) -> dict[str, Any]:
        return self._wrappers()

    def note_gone(self, path: Any) -> None:
        """Mark a path as removed in the replay's view."""
        self.is_touched = True
        self._on_write(self._full(path))

    def chdir(self, path: Any) -> None:
        """Change the working directory in the replay's view only, because it belongs to all threads."""
        if isinstance(path, int):
            self._refuse_call("a change of directory by descriptor")
        full = self._full(path)
        self.real["listdir"](self.to_read(full))  # raises like the real function
        self._cwd, self._is_at_home = full, False
        self.is_touched = True

    def remove_all(self) -> None:
        """Remove the folder, unless this is a forked child, whose parent owns it."""
        if self._pid == os.getpid() and self._has(self._root):
            self.real["rmtree"](self._root, ignore_errors=True)
