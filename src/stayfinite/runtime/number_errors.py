"""Whether an exception was raised because of values that are not finite."""

from __future__ import annotations

import re

from .frames import bad_tensors, holds_bad_number

__all__ = ["is_about_numbers"]

_SPEAKS_OF_NAN = re.compile(
    r"(?i)\b(nan|nans|inf|infs|infinite|infinity|finite|non-?finite|overflow)\b"
)


def is_about_numbers(error: BaseException) -> bool:
    """It says so, or what raised it was given some.

    >>> is_about_numbers(ValueError("probabilities contain NaN"))
    True
    >>> is_about_numbers(KeyError("name"))
    False
    """
    trace = error.__traceback__
    if _SPEAKS_OF_NAN.search(f"{type(error).__name__} {error}") or holds_bad_number(trace):
        return True
    return isinstance(error, (RuntimeError, ValueError)) and bool(bad_tensors(trace))
