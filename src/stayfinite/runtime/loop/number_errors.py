"""Decides whether an exception was caused by non-finite values."""

from __future__ import annotations

import re

from ..engine import Engine
from ..frames import bad_tensors, holds_bad_number
from ..window import Failure, Window

__all__ = ["failure_behind", "is_about_numbers"]

_MENTIONS_NAN = re.compile(
    r"(?i)\b(nan|nans|inf|infs|infinite|infinity|finite|non-?finite|overflow|underflow"
    r"|math range error|numerical result out of range)\b"
)

_OF_THE_CODE = (AttributeError, ImportError, NameError, SyntaxError, OSError)
"""No value makes these, whatever they speak of."""


def is_about_numbers(error: BaseException) -> bool:
    """Whether its message says so, or the function that raised it received such values.

    >>> is_about_numbers(ValueError("probabilities contain NaN"))
    True
    >>> is_about_numbers(OverflowError("math range error"))
    True
    >>> is_about_numbers(KeyError("name"))
    False
    >>> is_about_numbers(AttributeError("`np.Inf` was removed, use `np.inf`"))
    False
    """
    if isinstance(error, _OF_THE_CODE):
        return False
    trace = error.__traceback__
    if _MENTIONS_NAN.search(f"{type(error).__name__} {error}") or holds_bad_number(trace):
        return True
    if isinstance(error, AssertionError):
        return any(bool(t.isnan().any()) for t in bad_tensors(trace))
    return isinstance(error, (RuntimeError, ValueError)) and bool(bad_tensors(trace))


def failure_behind(error: BaseException, window: Window, engine: Engine) -> Failure | None:
    """The failure that caused this exception, if it was a value that is not finite."""
    # Before its backward the gradients are those of an earlier step, perhaps of one that was left out.
    has_gradients = window.num_backward > 0
    found = engine.explain(window, list(engine.state.optimizers)) if has_gradients else None
    if found is not None:
        return found
    bad = engine.state.bad_state()
    if not bad and not is_about_numbers(error):
        return None
    symptom = "gradient" if window.num_backward else "loss"
    # A buffer may have been written by the very forward that raised; a replay begins without that.
    names = [name for kind, name, _ in bad if kind != "buffer"]
    return Failure(symptom, window.step, names[0] if names else None)
