"""Maps elements between views and the memory below them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..numerics.health import dense_parts

__all__ = ["View", "carry", "coordinates", "index_of", "view_of"]

_MAX_SPREAD = 1 << 16


@dataclass(frozen=True)
class View:
    """The layout of a tensor in its storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def view_of(tensor: Tensor) -> View:
    for part in dense_parts(tensor):
        return View(tuple(part.shape), tuple(part.stride()), int(part.storage_offset()))
    return View((0,), (1,), 0)


def index_of(places: Tensor, view: View) -> Tensor:
    """The storage elements at these coordinates, one per row."""
    stride = torch.tensor(view.stride, dtype=torch.long, device=places.device)
    return (places * stride).sum(1) + view.offset


def coordinates(index: Tensor, view: View) -> Tensor:
    """The inverse, for a view that uses each element once."""
    found = torch.zeros((len(index), len(view.size)), dtype=torch.long, device=index.device)
    rest = index - view.offset
    for d in sorted(range(len(view.size)), key=lambda d: -view.stride[d]):
        if view.size[d] > 1 and view.stride[d] > 0:
            found[:, d] = rest // view.stride[d]
            rest = rest % view.stride[d]
    return found


def carry(at: Tensor, result: View, given: View) -> tuple[Tensor, Tensor] | None:
    """Map positions of a result to the inputs they were computed from, by the rules of broadcasting.

    Returns the position that each element belongs to (several if a dimension was summed), and the storage element of the
    input; None if the shapes do not match.
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
