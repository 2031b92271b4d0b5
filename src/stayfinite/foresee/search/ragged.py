"""Lists of sets or sequences of different sizes, also sizes that grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...runtime.batches import named_tensors
from ...runtime.rows import map_tensors
from .candidates import Candidate, Seen, first_row
from .parts import Part

__all__ = ["doubled", "growing", "shorter"]

_MOST_LISTS = 3
_TIMES = 4
_FEWEST_SIZES = 3


def shorter(seen: Seen) -> Iterator[Candidate]:
    """A list of tensors of equal length may have different lengths; otherwise it would be one tensor."""
    for holder, parts in list(_lists(seen).items())[:_MOST_LISTS]:
        sizes = {p.tensor.shape[0] for p in parts}
        if len(sizes) > 1 or min(sizes) < 2:
            continue
        last = parts[-1]
        for number in dict.fromkeys((last.tensor.shape[0] // 2, 1)):
            what = f"{last.name} with {number} entries, the others of {holder} with {min(sizes)}"
            make = seen.changed([last], _cut(number))
            yield Candidate("ragged", what, make, may_raise=True)


def _lists(seen: Seen) -> dict[str, list[Part]]:
    """The tensors of each list that holds one tensor a sample."""
    found: dict[str, list[Part]] = {}
    for p in seen.parts:
        holder, _, index = p.name.rpartition("[")
        if holder and index.rstrip("]").isdigit() and "[" in holder and p.tensor.dim() > 0:
            found.setdefault(holder, []).append(p)
    return {
        name: parts
        for name, parts in found.items()
        if len(parts) > 1 and len({(p.tensor.dtype, p.tensor.shape[1:]) for p in parts}) == 1
    }


def _cut(number: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t[:number].clone()


def doubled(seen: Seen) -> Iterator[Candidate]:
    """Double letters: every second entry of a sequence repeats the one before it."""
    rows = [
        p for p in seen.of_kind("labels", "tokens") if p.has_rows and p.tensor.dim() == 2 and p.low >= 0
    ]  # fmt: skip
    rows = [p for p in rows if p.tensor.shape[1] > 2 and not p.is_permutation]
    for p in rows[:_MOST_LISTS]:
        what = f"one sequence of {p.name} with every second entry like the one before"
        how = first_row(lambda t: _twice(t, 1), seen.num_rows)
        yield Candidate("double", what, seen.changed([p], how))
    for parts in list(_lists(seen).values())[:_MOST_LISTS]:
        longest = max(parts, key=lambda p: p.tensor.shape[0])
        t = longest.tensor
        if t.dim() == 1 and len(t) > 2 and not (t.is_floating_point() or t.dtype == torch.bool):
            what = f"{longest.name} with every second entry like the one before"
            make = seen.changed([longest], lambda t: _twice(t, 0))
            yield Candidate("double", what, make)


def _twice(t: Tensor, dim: int) -> Tensor:
    places = torch.arange(t.shape[dim], device=t.device) // 2 * 2
    return t.index_select(dim, places)


def growing(seen: Seen) -> Iterator[Candidate]:
    """Sizes that have grown from batch to batch up to the last one go on growing: a curriculum."""
    for p in seen.parts:
        shapes = [t.shape for b in seen.batches for n, t in named_tensors(b) if n == p.name]
        if len(shapes) < _FEWEST_SIZES or any(len(s) != p.tensor.dim() for s in shapes):
            continue
        for dim in range(p.tensor.dim()):
            sizes = [s[dim] for s in shapes]
            is_climbing = sizes == sorted(sizes) and sizes[-1] > sizes[-2]
            if not is_climbing or len(set(sizes)) < _FEWEST_SIZES or not sizes[0]:
                continue
            what = f"sizes {_TIMES} times those of the last batch ({_TIMES * sizes[-1]} instead of {sizes[-1]})"
            why = f"they have grown from {sizes[0]} to {sizes[-1]} in {len(sizes)} batches"
            make = _stretched(seen.batches[-1], sizes[-1])
            yield Candidate("growing", what, make, "possible", why, may_raise=True)
            return


def _stretched(batch: Any, size: int) -> Callable[[], Any]:
    """Repeat the contents of every dimension of this size several times."""

    def longer(t: Tensor) -> Tensor:
        return t.detach().repeat([_TIMES if n == size else 1 for n in t.shape])

    return lambda: map_tensors(batch, longer)
