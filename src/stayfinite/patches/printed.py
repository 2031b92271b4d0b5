"""Reads figures that a script prints or logs: "val accuracy 0.83", `val_loss=0.21`.

Nothing is patched unless a figure is requested by name.
"""

from __future__ import annotations

import builtins
import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

from .firewall import Firewall
from .manager import Subscribers, Subscription, Target, close_all, subscribe

__all__ = ["PrintedFigures"]

_SWITCH = "plan"
_NUMBER = r"(-?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+|nan|inf))\s*(%?)"


class PrintedFigures:
    """Calls a function for each figure with one of these names that the script prints or logs in this block.

    >>> seen = []
    >>> with PrintedFigures(["val acc"], lambda name, value: seen.append((name, value))):
    ...     print("epoch 3: train 0.1, val_acc=0.75")
    epoch 3: train 0.1, val_acc=0.75
    >>> seen
    [('val acc', 0.75)]
    """

    def __init__(self, names: Iterable[str], report: Callable[[str, float], None]) -> None:
        self._report = report
        self._patterns = {name: _pattern(name) for name in names}
        self._firewall = Firewall("reading what the script prints")
        reason = "a plan asks for a figure that the script prints"
        self._subscriptions: list[Subscription] = [
            subscribe(Target(builtins, "print", reason, _SWITCH), _around_print, self),
            subscribe(Target(logging.Logger, "handle", reason, _SWITCH), _around_handle, self),
        ]

    def saw(self, text: str) -> None:
        """Search a printed text for figures."""
        for name, pattern in self._patterns.items():
            found = pattern.search(text)
            if found is not None:
                value = float(found[1])
                self._report(name, value / 100 if found[2] else value)

    def close(self) -> None:
        close_all(self._subscriptions)

    def __enter__(self) -> PrintedFigures:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _pattern(name: str) -> re.Pattern[str]:
    """A pattern for the name: words joined by blanks, underscores, slashes or dots."""
    words = [re.escape(w) for w in re.split(r"[\s_/.-]+", name) if w]
    joined = r"[\s_/.-]+".join(words)
    return re.compile(rf"(?<![\w/]){joined}['\"]?\s*[=:]?\s*{_NUMBER}", re.IGNORECASE)


def _around_print(original: Any, subscribers: Subscribers) -> Any:
    def print(*values: Any, **how: Any) -> Any:
        result = original(*values, **how)
        for each in subscribers:
            each._firewall.call(lambda each=each: each.saw(" ".join(map(str, values))))
        return result

    return print


def _around_handle(original: Any, subscribers: Subscribers) -> Any:
    def handle(logger: Any, record: Any) -> Any:
        result = original(logger, record)
        for each in subscribers:
            each._firewall.call(lambda each=each: each.saw(record.getMessage()))
        return result

    return handle
