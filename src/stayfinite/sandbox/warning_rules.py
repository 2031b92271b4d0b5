"""Warnings of a replay: filtered as usual and never shown, but shown as usual afterwards.

A warning that is shown once per line must be shown later as if there had been no replay. So a replay has its own filters,
and entries that C code adds to a module's registry are removed. Not covered: torch's own record (`TORCH_WARN_ONCE`).
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import Any

from .box import Box, Rule, only_here
from .private_warnings import action_for

__all__ = ["RULES"]

_REASON = "warnings of a replay are neither shown nor used up"


def _warn(box: Box, original: Any, args: Any, kwargs: Any) -> None:
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    _warned(box, frame, *args, **kwargs)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_OURS)


_OURS = ("stayfinite.sandbox.", "stayfinite.patches.")


def _warned(
    box: Box,
    frame: FrameType,
    message: Any,
    category: Any = None,
    stacklevel: int = 1,
    source: Any = None,
    **kwargs: Any,
) -> None:
    for _ in range(stacklevel - 1):
        frame = frame.f_back or frame
    category = type(message) if isinstance(message, Warning) else category or UserWarning
    module = str(frame.f_globals.get("__name__") or "<string>")
    _handle(box, message, category, frame.f_code.co_filename, frame.f_lineno, module, source)


def _handle(
    box: Box, message: Any, category: Any, filename: str, lineno: int, module: str, source: Any
) -> None:
    if not isinstance(message, Warning):
        message = category(message)
    made = warnings.WarningMessage(message, category, filename, lineno, source=source)
    box.warnings.handle(made, module)


def _warn_explicit(box: Box, original: Any, args: Any, kwargs: Any) -> None:
    _warned_explicitly(box, *args, **kwargs)


def _warned_explicitly(
    box: Box,
    message: Any,
    category: Any,
    filename: str,
    lineno: int,
    module: str | None = None,
    registry: Any = None,
    module_globals: Any = None,
    source: Any = None,
) -> None:
    category = type(message) if isinstance(message, Warning) else category
    name = module or filename.removesuffix(".py") or "<unknown>"
    _handle(box, message, category, filename, lineno, name, source)


def _show(box: Box, original: Any, args: Any, kwargs: Any) -> None:
    """C code has used the filters of all threads, and noted the warning; apply the replay's filters."""
    message = args[0]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != message.filename:
        frame = frame.f_back
    namespace: dict[str, Any] = {} if frame is None else frame.f_globals
    module = str(namespace.get("__name__") or str(message.filename).removesuffix(".py"))
    _forget(namespace, message, module)
    box.warnings.handle(message, module)


def _forget(namespace: dict[str, Any], message: warnings.WarningMessage, module: str) -> None:
    """Remove what was noted just now, so that the same warning is shown the next time."""
    text, category = str(message.message), message.category
    action = action_for(warnings.filters, text, category, module, message.lineno)
    noted: list[tuple[Any, ...]] = [(text, category, message.lineno)]
    if action in ("once", "module"):
        noted += [(text, category), (text, category, 0)]
    if action == "once":
        once: Any = getattr(warnings, "onceregistry", {})
        once.pop((text, category), None)
    registry = namespace.get("__warningregistry__")
    if not isinstance(registry, dict):
        return
    for key in noted:
        registry.pop(key, None)
    if not registry.keys() - {"version"}:
        namespace.pop("__warningregistry__", None)


def _enter(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    return box.warnings.enter(args[0])


def _exit(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    if not box.warnings.has_entered(args[0]):
        return original(*args, **kwargs)  # it was entered before the replay
    box.warnings.leave(args[0])
    return None


def _add_filter(box: Box, original: Any, args: Any, kwargs: Any) -> None:
    box.warnings.add_filter(args, bool(kwargs.get("append")))


def _reset(box: Box, original: Any, args: Any, kwargs: Any) -> None:
    box.warnings.reset()


_ACTS = {
    "warn": _warn,
    "warn_explicit": _warn_explicit,
    "_showwarnmsg": _show,
    "_add_filter": _add_filter,
    "resetwarnings": _reset,
    "catch_warnings.__enter__": _enter,
    "catch_warnings.__exit__": _exit,
}
RULES = tuple(Rule("warnings", name, only_here(act), _REASON) for name, act in _ACTS.items())
