"""Runs code on trial without changing anything of the user's.

`check` and `ladder` run unmodified scripts, which write checkpoints, logs and folders. In a process that exists only for one
such run, `redirect_for_good` redirects everything that is written to a temporary folder; the script reads its own files back
from there. A replay runs in the live training: in `computing_only` it can compute, but has no side effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .box import Refused, Report
from .files import RedirectedFiles

if TYPE_CHECKING:
    from .compute import computing_only
    from .quiet import open_streams

__all__ = [
    "RedirectedFiles",
    "Refused",
    "Report",
    "computing_only",
    "open_streams",
    "redirect_for_good",
]


def redirect_for_good(folder: str) -> RedirectedFiles:
    """Redirect all writes to `folder` until this process ends."""
    from .natives import redirect_natives

    files = RedirectedFiles(folder)
    files.install()
    redirect_natives(files)
    return files


def __getattr__(name: str) -> Any:
    if name == "computing_only":
        from .compute import computing_only

        return computing_only
    if name == "open_streams":
        from .quiet import open_streams

        return open_streams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
