"""Which elements of a storage a tensor covers, and the pieces to read them in."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from .limits import FileFault

__all__ = ["Block", "Layout", "layout_of", "row_major"]


@dataclass(slots=True)
class Block:
    """A piece of a storage: `sizes` and `strides` from element `start`."""

    start: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return prod(self.sizes)

    @property
    def is_dense(self) -> bool:
        return len(self.sizes) == 1 and self.strides[0] == 1


@dataclass(slots=True)
class Layout:
    """The distinct elements that a tensor reaches."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dims: tuple[tuple[int, int], ...]
    """(size, stride), widest stride first, neighbors merged; (n, 1) when it is dense."""

    @property
    def num_elements(self) -> int:
        """Distinct elements: an expanded tensor counts what it stores, not what it shows."""
        return prod(n for n, _ in self.dims)

    @property
    def is_dense(self) -> bool:
        return len(self.dims) == 1 and self.dims[0][1] == 1

    def blocks(self, at_most: int) -> Iterator[Block]:
        """The elements in pieces of at most `at_most`."""
        if self.num_elements:
            yield from _split(self.offset, self.dims, at_most)

    def index_of(self, position: int) -> tuple[int, ...] | None:
        """The tensor's index of the storage's element `position`."""
        rest = position - self.offset
        index = [0] * len(self.size)
        order = sorted(range(len(self.size)), key=lambda d: -self.stride[d])
        for d in order:
            if self.stride[d] and self.size[d] > 1:
                index[d] = min(rest // self.stride[d], self.size[d] - 1)
                rest -= index[d] * self.stride[d]
        return tuple(index) if rest == 0 else None


@functools.lru_cache(maxsize=4096)
def row_major(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a dense tensor; one tuple for all tensors of that shape.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [1] * len(size), 1
    for i in range(len(size) - 1, -1, -1):
        strides[i] = step
        step *= size[i]
    return tuple(strides)


def layout_of(
    offset: int, size: tuple[int, ...], stride: tuple[int, ...], num_stored: int
) -> Layout:
    """The layout of a tensor over a storage of `num_stored` elements; outside it is a fault.

    >>> layout_of(0, (2, 3), (1, 2), 6).dims
    ((6, 1),)
    """
    if 0 in size:
        return Layout(offset, size, stride, ((0, 1),))
    last = offset
    for n, s in zip(size, stride):
        last += (n - 1) * s
    if last >= num_stored:
        raise FileFault(
            "truncated",
            f"shape {list(size)} reaches element {last:,} of a storage that has {num_stored:,}",
        )
    dims = sorted(((n, s) for n, s in zip(size, stride) if n > 1 and s > 0), key=lambda d: -d[1])
    reach = 0
    for n, s in reversed(dims):
        if s <= reach:
            return Layout(offset, size, stride, ((last - offset + 1, 1),))
        reach += (n - 1) * s
    return Layout(offset, size, stride, _merge(dims))


def _merge(dims: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for n, s in dims:
        if merged and merged[-1][1] == n * s:
            merged[-1] = (merged[-1][0] * n, s)
        else:
            merged.append((n, s))
    return tuple(merged) or ((1, 1),)


def _split(start: int, dims: tuple[tuple[int, int], ...], at_most: int) -> Iterator[Block]:
    inner = prod(n for n, _ in dims[1:])
    (n, s), rest = dims[0], dims[1:]
    if inner > at_most:
        for i in range(n):
            yield from _split(start + i * s, rest, at_most)
        return
    step = max(1, at_most // inner)
    for i in range(0, n, step):
        count = min(step, n - i)
        yield Block(start + i * s, (count, *(m for m, _ in rest)), (s, *(t for _, t in rest)))
