"""Sets the arguments of `torch.autograd.backward` for a start gradient other than 1."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["seeded"]


def seeded(
    seed: Tensor, tensors: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments, with the gradient of the first tensor multiplied by this one."""
    given = args[0] if args else kwargs.get("grad_tensors")
    others = {name: value for name, value in kwargs.items() if name != "grad_tensors"}
    num = 1 if isinstance(tensors, Tensor) else len(tensors)
    parts: list[Any] = [None] * num
    if given is not None:
        parts = [given] if isinstance(given, Tensor) else list(given)
    parts[0] = seed if parts[0] is None else parts[0] * seed
    return (parts, *args[1:]), others
