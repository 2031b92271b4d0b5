"""Shadow memory: the smallest and largest possible value of every element of every storage.

Views and in-place writes need no model: a tensor is a view of the shadow of its storage, as it is of the storage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..tape import Ref

__all__ = ["Key", "Shadows", "Span", "key_of"]

Key = tuple[Any, ...]
"""The same tensor has the same key: storage, how often it was written, and how it looks at it."""


@dataclass
class Span:
    """The range of every element of a tensor."""

    lo: Tensor
    hi: Tensor
    dtype: torch.dtype = torch.float32
    key: Key | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Knowledge beyond the ranges: that it is the maximum of something, a comparison."""
    words: str = ""
    """A description for messages: "the sum of batch['mask']"."""
    seen: tuple[float, float] | None = None
    """Smallest and largest captured value."""
    has_inf: bool = False

    @property
    def shape(self) -> torch.Size:
        return self.lo.shape

    @property
    def is_point(self) -> bool:
        return bool((self.lo == self.hi).all())

    @property
    def mag(self) -> Tensor:
        """The largest magnitude of each element."""
        return torch.maximum(self.lo.abs(), self.hi.abs())

    def like(self, lo: Tensor, hi: Tensor, **facts: Any) -> Span:
        return Span(lo, hi, self.dtype, facts=facts)

    def mapped(self, function: Any) -> Span:
        """The same movement of elements for both ends."""
        return self.like(function(self.lo), function(self.hi))


@dataclass
class _Memory:
    lo: Tensor
    hi: Tensor
    version: int = 0
    after: int | None = None
    """The index of the first unsafe operator in its history."""
    parts: frozenset[str] = frozenset()
    words: str = ""
    seen: tuple[float, float] | None = None
    variable: tuple[int, str, int] | None = None
    """A size that changes with the data: what it was, what is said when it is 0, its largest."""
    unwritten: int | None = None
    """Who allocated it, where some of it was never written: those elements have no range (NaN)."""
    has_inf: bool = False
    """Some of it can be an infinite number that was written on purpose."""
    is_exact: bool = False
    """Every element is one point, and that is its very value."""


class Shadows:
    """The shadows of all storages that are still used."""

    def __init__(self) -> None:
        self._memory: dict[int, _Memory] = {}
        self._facts: dict[Key, dict[str, Any]] = {}
        self.num_elements = 0
        self.peak_elements = 0

    def has(self, ref: Ref) -> bool:
        return ref.storage in self._memory

    def allocate(self, ref: Ref) -> _Memory:
        made = _Memory(
            torch.zeros(ref.length, dtype=torch.float64),
            torch.zeros(ref.length, dtype=torch.float64),
        )
        self.free(ref.storage)
        self._memory[ref.storage] = made
        self.num_elements += ref.length
        self.peak_elements = max(self.peak_elements, self.num_elements)
        return made

    def free(self, storage: int) -> None:
        gone = self._memory.pop(storage, None)
        if gone is not None:
            self.num_elements -= gone.lo.numel()

    def of(self, ref: Ref) -> _Memory:
        return self._memory[ref.storage]

    def read(self, ref: Ref) -> Span:
        memory = self._memory[ref.storage]
        key = (ref.storage, memory.version, ref.offset, ref.dtype, ref.shape, ref.stride)
        return Span(
            memory.lo.as_strided(ref.shape, ref.stride, ref.offset),
            memory.hi.as_strided(ref.shape, ref.stride, ref.offset),
            ref.dtype,
            key,
            self._facts.get(key_of(ref, memory.version), {}),
            memory.words,
            memory.seen,
            memory.has_inf,
        )

    def write(self, ref: Ref, span: Span) -> None:
        """What an operator gave, into new memory or into what it wrote to."""
        memory = self._memory.get(ref.storage)
        if memory is None or memory.lo.numel() < ref.length:
            memory = self.allocate(ref)
        memory.version += 1
        for target, values in ((memory.lo, span.lo), (memory.hi, span.hi)):
            view = target.as_strided(ref.shape, ref.stride, ref.offset)
            if 0 not in ref.stride or ref.numel <= 1:
                view.copy_(values.expand(ref.shape))
            else:
                _dense(view).copy_(_dense_like(values.expand(ref.shape), ref))
        if span.facts:
            self._facts[key_of(ref, memory.version)] = span.facts

    def after(self, refs: Iterable[Ref]) -> int | None:
        found = [
            m.after for r in refs if (m := self._memory.get(r.storage)) and m.after is not None
        ]
        return min(found, default=None)

    def parts(self, refs: Iterable[Ref]) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for r in refs:
            memory = self._memory.get(r.storage)
            found |= memory.parts if memory else frozenset()
        return found


def _dense(view: Tensor) -> Tensor:
    """Without the dimensions that repeat the same memory."""
    for dim, stride in enumerate(view.stride()):
        if stride == 0 and view.shape[dim] > 1:
            view = view.narrow(dim, 0, 1)
    return view


def _dense_like(values: Tensor, ref: Ref) -> Tensor:
    for dim, stride in enumerate(ref.stride):
        if stride == 0 and ref.shape[dim] > 1:
            values = values.narrow(dim, 0, 1)
    return values


def key_of(ref: Ref, version: int) -> Key:
    """For facts about each element: dimensions of one and repeated ones do not change them."""
    dims: list[tuple[int, int]] = []
    for size, stride in zip(ref.shape, ref.stride):
        if size == 1 or stride == 0:
            continue
        if dims and dims[-1][1] == size * stride:
            dims[-1] = (dims[-1][0] * size, stride)
        else:
            dims.append((size, stride))
    return (ref.storage, version, ref.offset, ref.dtype, tuple(dims))
