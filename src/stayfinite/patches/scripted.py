"""Lets TorchScript call a patched builtin: its compiler knows `torch.autograd.grad` by the identity of the function."""

from __future__ import annotations

from typing import Any

from torch.jit import _builtins

__all__ = ["stand_in", "stand_out"]


def stand_in(patch: Any, original: Any) -> None:
    """Let `patch` mean in scripted code what `original` means there."""
    name = _builtins._find_builtin(original)
    if name is not None:
        _builtins._register_builtin(patch, name)


def stand_out(patch: Any) -> None:
    """Undo it before the patch is gone: another object may get its identity."""
    _builtins._get_builtin_table().pop(id(patch), None)
