"""User classes whose methods torch calls; in a replay these write to copies.

No statement of a loop calls `__torch_function__` or `backward`, so they cannot be left out for their side effects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["of_copied_class", "own_members"]


def own_members(cls: type, copy: Callable[[Any], Any]) -> dict[str, Any]:
    """Copies of what the class and its bases hold and might write to: containers, and methods with what
    they see of their module. Only those that differ from the originals."""
    if issubclass(cls, Tensor) and any("__torch_dispatch__" in vars(b) for b in _own_bases(cls)):
        return {}  # torch knows its tensors by this very class: they cannot become another one's
    kind = str(type(cls).__module__)
    is_noted = any("__init_subclass__" in vars(b) for b in _own_bases(cls))
    if is_noted or not kind.startswith(("torch", "builtins", "abc")):
        return {}  # to make a class of it would run code of the user's, which may note it somewhere
    found: dict[str, Any] = {}
    for base in reversed(_own_bases(cls)):
        found.update(vars(base))
    made = {n: _copied(v, copy) for n, v in found.items() if n not in ("__dict__", "__weakref__")}
    return {n: v for n, v in made.items() if v is not found[n]}


def _own_bases(cls: type) -> list[type]:
    return [b for b in cls.__mro__ if not str(b.__module__).startswith(("torch", "builtins"))]


def _copied(member: Any, copy: Callable[[Any], Any]) -> Any:
    if isinstance(member, (classmethod, staticmethod)):
        inside = copy(member.__func__)
        return member if inside is member.__func__ else type(member)(inside)
    return copy(member)


def of_copied_class(value: Tensor, copy: Callable[[Any], Any]) -> Tensor:
    """The same numbers as a tensor of the copied class; one that is trained stays the one that it is."""
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        return value
    copied: type[Tensor] = copy(kind)
    with torch._C.DisableTorchFunctionSubclass():
        is_kept = copied is kind or value.requires_grad
        return value if is_kept else value.as_subclass(copied)
