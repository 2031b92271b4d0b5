"""Keeps `catch_warnings` of a replay from changing other threads' filters."""

from __future__ import annotations

import warnings
from typing import Any

__all__ = ["PrivateWarnings", "action_for"]


class PrivateWarnings:
    """The warning filters of one replay, and its recorder."""

    def __init__(self) -> None:
        self._filters: list[Any] | None = None
        self._log: list[Any] | None = None
        self._seen: set[Any] = set()
        self._entered: dict[int, tuple[Any, Any, Any]] = {}

    def add_filter(self, item: tuple[Any, ...], append: bool) -> None:
        filters = [f for f in self._now() if f != item or append]
        self._filters = filters + [item] if append else [item] + filters
        self._seen = set()

    def reset(self) -> None:
        self._filters, self._seen = [], set()

    def enter(self, catcher: Any) -> list[Any] | None:
        self._entered[id(catcher)] = (self._filters, self._log, self._seen)
        # As in the original: subclasses use it, and it may be left after the replay.
        catcher._entered = True
        for name in ("filters", "showwarning", "_showwarnmsg_impl"):
            setattr(catcher, "_" + name.lstrip("_"), getattr(warnings, name, None))
        self._filters, self._seen = list(self._now()), set()
        if catcher._record:
            self._log = []
        wanted = getattr(catcher, "_filter", None)
        if wanted is not None:
            action, category, lineno, append = wanted
            self.add_filter((action, None, category, None, lineno), bool(append))
        return self._log if catcher._record else None

    def has_entered(self, catcher: Any) -> bool:
        return id(catcher) in self._entered

    def leave(self, catcher: Any) -> None:
        self._filters, self._log, self._seen = self._entered.pop(id(catcher))
        catcher._entered = False

    def handle(self, message: warnings.WarningMessage, module: str) -> None:
        """Raise a warning if the filters say "error", or record it; it is never shown."""
        text, category = str(message.message), message.category
        action = action_for(self._now(), text, category, module, message.lineno)
        if action == "error":
            raise message.message if isinstance(message.message, Warning) else category(text)
        if action == "ignore" or self._log is None:
            return
        place = {"once": (), "module": (module,), "default": (module, message.lineno)}.get(action)
        if place is not None and (text, category, place) in self._seen:
            return
        self._seen.add((text, category, place))
        self._log.append(message)

    def _now(self) -> Any:
        return warnings.filters if self._filters is None else self._filters


def action_for(filters: Any, text: str, category: type[Warning], module: str, lineno: int) -> str:
    """The action of the first matching filter."""
    for action, message, of, where, line in filters:
        if (
            _matches(message, text)
            and issubclass(category, of)
            and _matches(where, module)
            and line in (0, lineno)
        ):
            return str(action)
    return "default"


def _matches(pattern: Any, text: str) -> bool:
    if pattern is None:
        return True
    return pattern == text if isinstance(pattern, str) else pattern.match(text) is not None
