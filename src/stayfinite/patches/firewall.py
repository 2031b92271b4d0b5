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
    """What has failed in this process, by its place: for an incident, where stderr was muted."""
    return dict(_failures)


class Firewall:
    """Calls our functions for the user's; the first that raises is the last that is called.

    A running out of memory and a recursion that is too deep count as well. What is raised on purpose
    (`StayfiniteError`), an interrupt and an exit go through. `on_failure` is called once, for example to
    close a subscription. The user's own function must not be called in here: its errors are theirs.
    `is_inside`: says when a failure is for somebody above to catch, who puts back what was begun.

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
        """What `function` returns, or `fallback` when it fails or something has failed before."""
        if self.is_down:
            return fallback
        try:  # not by way of `attempt`: this is in every healthy step several times
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
        """`call` for arguments of any name."""
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
        """`call` for one look or one cleanup: it may fail, and the next one is made all the same."""
        try:
            return function(*args)
        except StayfiniteError:
            raise
        except Exception as error:
            with contextlib.suppress(Exception):
                _report(self.place, error)
        return fallback

    def fail(self, error: Exception) -> None:
        """Something of ours has raised this: it is reported, and nothing more is called here."""
        if self._is_inside is not None and self._is_inside():
            raise error
        self.is_down = True
        # Where memory or the stack has run out, reporting may fail too.
        with contextlib.suppress(Exception):
            _report(self.place, error)
        if self._on_failure is not None:
            with contextlib.suppress(Exception):
                self._on_failure()


def guarded(
    function: Callable[..., Any], fallback: Callable[..., Any], place: str | None = None
) -> Callable[..., Any]:
    """`function` behind a firewall of its own; from its first failure on, `fallback`.

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
