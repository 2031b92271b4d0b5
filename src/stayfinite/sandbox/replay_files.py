"""Files of a replay: in a temporary folder, deleted at the end.

The files are redirected as for a script that is tried out, with three differences, since here a live
training goes on around it: only the replaying thread is concerned, the working directory of the process
never changes, and nothing is free to be written but devices that forget.
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
    """Where one replay's files are; the folder is made when something is first written."""

    def __init__(
        self,
        refuse: Callable[[str], Any],
        on_write: Callable[[str], None],
        outside: Callable[..., Any],
    ) -> None:
        """`outside(function, …)` calls a function of ours as if there were no replay."""
        name = f"stayfinite-replay-{uuid.uuid4().hex}"
        super().__init__(os.path.join(tempfile.gettempdir(), name), _FREE)
        self.real = {n: functools.partial(outside, f) for n, f in self.real.items()}
        self._refuse_call = refuse
        self._on_write = on_write
        self._pid = os.getpid()
        self.is_touched = False
        """Whether anything can look different in here from what it is outside."""

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
        """What is called instead of `os.name`."""
        found: Callable[..., Any] = self._made[name]
        return found

    @functools.cached_property
    def _made(self) -> dict[str, Any]:
        return self._wrappers()

    def note_gone(self, path: Any) -> None:
        """A path is about to be removed, as far as the replay sees."""
        self.is_touched = True
        self._on_write(self._full(path))

    def chdir(self, path: Any) -> None:
        """The working directory belongs to all threads; here it only looks changed."""
        if isinstance(path, int):
            self._refuse_call("a change of directory by descriptor")
        full = self._full(path)
        self.real["listdir"](self.to_read(full))  # raises as the real one would
        self._cwd, self._is_at_home = full, False
        self.is_touched = True

    def remove_all(self) -> None:
        """The folder goes, unless this is a forked child: it is the parent's."""
        if self._pid == os.getpid() and self._has(self._root):
            self.real["rmtree"](self._root, ignore_errors=True)
