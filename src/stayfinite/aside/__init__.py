"""A script that is only tried out changes nothing of the user's on disk.

`check` and `ladder` run unmodified scripts, and these write checkpoints, logs and folders. In the
process that is there for one such run, `keep_aside` leads whatever is written into a folder of our
own; the script reads its own files back from there.
"""

from __future__ import annotations

from .files import Aside

__all__ = ["Aside", "keep_aside"]


def keep_aside(folder: str) -> Aside:
    """From now on, and until this process ends, everything is written below `folder`."""
    from .natives import lead_aside

    aside = Aside(folder)
    aside.install()
    lead_aside(aside)
    return aside
