"""Runs several undo functions, even if some of them fail."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["put_back"]


def put_back(*calls: Callable[[], object]) -> None:
    """Call every function, even if some fail; those that failed are called once more at the end.

    An error of the second attempt is raised. Every function must be idempotent.

    >>> done = []
    >>> put_back(lambda: done.append("weights"), lambda: done.append("rates"))
    >>> done
    ['weights', 'rates']
    """
    failed = []
    for call in calls:
        try:
            call()
        except Exception:
            failed.append(call)
    error: Exception | None = None
    for call in failed:
        try:
            call()
        except Exception as again:
            error = error or again
    if error is not None:
        raise error
