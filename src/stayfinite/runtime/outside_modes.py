"""Runs our own tensor operations outside the torch modes that a script has entered."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["outside_user_code", "outside_user_modes"]

F = TypeVar("F", bound=Callable[..., Any])

_num_function_modes = torch._C._len_torch_function_stack
_num_dispatch_modes = torch._C._len_torch_dispatch_stack


_is_mode_needed: list[bool] = []
"""Not empty once a mode has turned out to be the device itself."""


def outside_user_modes(function: F) -> F:
    """Decorate a function so that the script's `TorchFunctionMode`s and `TorchDispatchMode`s do not see its operators."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _num_function_modes() and not _num_dispatch_modes():
            return function(*args, **kwargs)
        if _is_mode_needed:
            return function(*args, **kwargs)
        try:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                return function(*args, **kwargs)
        except NotImplementedError:  # the mode implements the device: nothing runs without it
            _is_mode_needed.append(True)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def outside_user_code(function: F) -> F:
    """The same for code that only reads: the `__torch_function__` of a tensor's own class does not see its operators either.

    Not for code that copies objects: a tensor that is copied like this loses its class.
    """
    outside = outside_user_modes(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _num_function_modes() or _num_dispatch_modes():
            return outside(*args, **kwargs)
        try:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        except NotImplementedError:  # the class does not hold its values where torch looks
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]
