"""A script that is only tried out changes nothing of the user's on disk.

`check` and `ladder` run unmodified scripts, and these write checkpoints, logs and folders. In the
process that is there for one such run, `redirect_for_good` redirects whatever is written to a folder of
our own; the script reads its own files back from there.
"""

from __future__ import annotations

from .files import RedirectedFiles

__all__ = ["RedirectedFiles", "redirect_for_good"]


def redirect_for_good(folder: str) -> RedirectedFiles:
    """From now on, and until this process ends, everything is written below `folder`."""
    from .natives import redirect_natives

    files = RedirectedFiles(folder)
    files.install()
    redirect_natives(files)
    return files
