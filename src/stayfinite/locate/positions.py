"""Maps elements between views and the memory under them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..numerics.health import dense_parts

__all__ = ["View", "carry", "coordinates", "index_of", "view_of"]

_MAX_SPREAD = 1 << 16


@dataclass(frozen=True)
class View:
    """How a tensor lies in its storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def view_of(tensor: Tensor) -> View:
    for part in dense_parts(tensor):
        return View(tuple(part.shape), tuple(part.stride()), int(part.storage_offset()))
    return View((0,), (1,), 0)


def index_of(places: Tensor, view: View) -> Tensor:
    """The elements of the storage at these coordinates, one row each."""
    stride = torch.tensor(view.stride, dtype=torch.long, device=places.device)
    return (places * stride).sum(1) + view.offset


def coordinates(index: Tensor, view: View) -> Tensor:
    """The other way round, for a view that uses no element twice."""
    found = torch.zeros((len(index), len(view.size)), dtype=torch.long, device=index.device)
    rest = index - view.offset
    for d in sorted(range(len(view.size)), key=lambda d: -view.stride[d]):
        if view.size[d] > 1 and view.stride[d] > 0:
            found[:, d] = rest // view.stride[d]
            rest = rest % view.stride[d]
    return found


def carry(at: Tensor, result: View, given: View) -> tuple[Tensor, Tensor] | None:
    """From places of a result to what they were computed from, by the rules of broadcasting.

    Returns which place each element belongs to (several where a dimension was summed up), and the
    element of the storage that was given; None where the shapes do not fit.
    """
    extra = len(result.size) - len(given.size)
    if extra < 0:
        return None
    owner = torch.arange(len(at), device=at.device)
    places = at[:, extra:].clone()
    for d, (size, wanted) in enumerate(zip(given.size, result.size[extra:])):
        if size == wanted:
            continue
        if size == 1:
            places[:, d] = 0
        elif wanted == 1 and len(places) * size <= _MAX_SPREAD:
            num = len(places)
            owner, places = owner.repeat_interleave(size), places.repeat_interleave(size, 0)
            places[:, d] = torch.arange(size, device=at.device).repeat(num)
        else:
            return None
    return owner, index_of(places, given)
