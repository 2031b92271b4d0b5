"""Restores things step by step, whatever else fails."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["put_back"]


def put_back(*calls: Callable[[], object]) -> None:
    """Call each, though others fail; one that fails is called once more, when the others are through.

    What still fails then is raised. Each must be such that calling it twice is the same as once.

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
