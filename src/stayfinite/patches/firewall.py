"""Keeps exceptions of our own code away from the training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ..errors import StayfiniteError
from ..saying import say

__all__ = ["Firewall", "failures", "guarded"]

_failures: dict[str, str] = {}


def failures() -> dict[str, str]:
    """The failures of this process by place, for an incident in case stderr was muted."""
    return dict(_failures)


class Firewall:
    """Calls our functions in the user's process; after the first failure, it calls nothing any more.

    Running out of memory and too deep recursions count as failures. Deliberate exceptions (`StayfiniteError`),
    interrupts and exits pass through. `on_failure` is called once, for example to close a subscription. Functions of the
    user must not be called through it, because their errors must pass. `is_inside` returns whether a failure is to be
    passed on to a caller that undoes what was begun.

    >>> firewall = Firewall("the loss check")
    >>> firewall.call(len, [1, 2])
    2
    """

    def __init__(
        self,
        place: str,
        on_failure: Callable[[], object] | None = None,
        is_inside: Callable[[], bool] | None = None,
    ) -> None:
        self.place = place
        self._is_inside = is_inside
        self.is_down = False
        self._on_failure = on_failure

    def call(self, function: Callable[..., Any], *args: Any, fallback: Any = None) -> Any:
        """The result of `function`, or `fallback` if it fails or something has failed before."""
        if self.is_down:
            return fallback
        try:  # Not through `attempt`: this runs several times in every healthy step.
            return function(*args)
        except StayfiniteError:
            raise
        except Exception as error:
            self.fail(error)
        return fallback

    def attempt(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fallback: Any,
    ) -> Any:
        """`call` with arguments of any name."""
        if self.is_down:
            return fallback
        try:
            return function(*args, **kwargs)
        except StayfiniteError:
            raise
        except Exception as error:
            self.fail(error)
        return fallback

    def once(self, function: Callable[..., Any], *args: Any, fallback: Any = None) -> Any:
        """`call` for a single investigation or cleanup: a failure does not prevent later calls."""
        try:
            return function(*args)
        except StayfiniteError:
            raise
        except Exception as error:
            with contextlib.suppress(Exception):
                _report(self.place, error)
        return fallback

    def fail(self, error: Exception) -> None:
        """Report an error of our own, and call nothing through this firewall any more."""
        if self._is_inside is not None and self._is_inside():
            raise error
        self.is_down = True
        # Without memory or stack, reporting may fail too.
        with contextlib.suppress(Exception):
            _report(self.place, error)
        if self._on_failure is not None:
            with contextlib.suppress(Exception):
                self._on_failure()


def guarded(
    function: Callable[..., Any], fallback: Callable[..., Any], place: str | None = None
) -> Callable[..., Any]:
    """Wrap `function` in a firewall of its own; after the first failure, `fallback` is called instead.

    >>> root = guarded(lambda x: x**0.5, lambda x: None)
    >>> root(4)
    2.0
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    firewall = Firewall(place or f"{getattr(function, '__module__', '?')}.{name}")
    failed = object()

    def call(*args: Any, **kwargs: Any) -> Any:
        value = firewall.attempt(function, args, kwargs, failed)
        return fallback(*args, **kwargs) if value is failed else value

    return call


def _report(place: str, error: Exception) -> None:
    what = _in_short(error)
    if _failures.setdefault(place, what) is not what:
        return
    say(
        f"stayfinite: {place} failed ({what}); this protection is off from now on; "
        "the training goes on"
    )


def _in_short(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0][:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
