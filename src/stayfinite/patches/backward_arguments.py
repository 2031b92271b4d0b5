"""What `torch.autograd.backward` is called with, changed in one thing."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["keeping_graph", "seeded"]

_BACKWARD = ("retain_graph", "create_graph", "grad_variables", "inputs")


def keeping_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments behind the gradients, with a graph that stays."""
    return {**dict(zip(_BACKWARD, args[1:])), **kwargs, "retain_graph": True}


def seeded(
    seed: Tensor, tensors: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments, with the gradient of the first of the tensors multiplied by this one."""
    given = args[0] if args else kwargs.pop("grad_tensors", None)
    num = 1 if isinstance(tensors, Tensor) else len(tensors)
    parts: list[Any] = [None] * num
    if given is not None:
        parts = [given] if isinstance(given, Tensor) else list(given)
    parts[0] = seed if parts[0] is None else parts[0] * seed
    return (parts, *args[1:]), kwargs
