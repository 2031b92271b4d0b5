"""Keeps our own code out of compilation when it runs between compiled functions."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch._C._dynamo import eval_frame

from .warning_frames import for_each_skipped

__all__ = ["is_compiled", "skip_our_code"]

_done: set[str] = set()
_USERS = ("stayfinite.numerics", "stayfinite.demo")
"""Functions that a model calls, which belong into its graph."""
_MAX_NODES = 50_000
_CHECKS = "stayfinite.numerics.health"
"""Modules among them that only stayfinite calls."""


def skip_our_code() -> None:
    """Make `torch.compile` skip our functions, but compile the functions that they call.

    After a graph break, the rest of the call runs in Python, and the compiler looks at every function there. Ours would
    become graphs of their own.
    """
    if not _done:
        for_each_skipped(_skip)
    for name, module in list(sys.modules.items()):
        is_ours = name.startswith("stayfinite.") and not name.startswith(_USERS)
        if (is_ours or name == _CHECKS) and name not in _done:
            _done.add(name)
            for code in _codes(module):
                _skip(code)


def _skip(code: types.CodeType) -> None:
    """Set the option in the old or the new way, depending on the torch version."""
    if hasattr(eval_frame, "skip_code"):
        eval_frame.skip_code(code)
    elif hasattr(eval_frame, "set_code_exec_strategy"):
        action = eval_frame._FrameAction
        way = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
        eval_frame.set_code_exec_strategy(code, way)


def _codes(module: Any) -> Iterator[types.CodeType]:
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        parts = vars(value).values() if isinstance(value, type) else (value,)
        for part in parts:
            for function in _functions(part):
                yield from _nested(function.__code__)


def _functions(part: Any) -> Iterator[types.FunctionType]:
    if isinstance(part, property):
        candidates: tuple[Any, ...] = (part.fget, part.fset)
    else:
        candidates = (getattr(part, "__func__", part),)
    for each in candidates:
        while isinstance(each, types.FunctionType):
            yield each
            each = getattr(each, "__wrapped__", None)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def is_compiled(loss: Tensor) -> bool:
    """Whether a part of its graph is compiled; such a part cannot be replayed."""
    todo: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while todo and len(seen) < _MAX_NODES:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if "CompiledFunction" in node.name():
            return True
        seen.add(node)
        todo += [following for following, _ in node.next_functions]
    return False
