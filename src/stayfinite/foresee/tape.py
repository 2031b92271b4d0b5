"""The tape of a captured step: every operator with its inputs, by memory and shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .records import Operation

__all__ = ["Call", "Capture", "Opaque", "Part", "Ref", "Source", "refs_in"]


@dataclass(frozen=True)
class Ref:
    """A tensor at some moment: its memory and its layout."""

    storage: int
    """Number of the storage in the capture."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    length: int
    """Elements of the storage."""

    @property
    def numel(self) -> int:
        number = 1
        for size in self.shape:
            number *= size
        return number


class Opaque:
    """A tensor whose memory cannot be tracked: sparse, nested, on several ranks."""


@dataclass(frozen=True)
class Part:
    """A tensor with a name: a part of the batch, a parameter, a buffer."""

    kind: str
    """batch | parameter | buffer | optimizer_state | gradient"""
    name: str
    ref: Ref
    step: int
    """The captured step from which on it has this name."""


@dataclass(frozen=True)
class Source:
    """Memory that existed before the operators: a part of the batch, a parameter, a constant."""

    ref: Ref
    """The tensor by which it was first seen."""
    values: Tensor | None = field(repr=False, compare=False)
    """The whole storage, flat, as at its first use; None if it is not available."""


@dataclass(frozen=True)
class Call:
    """One operator as it was called."""

    operation: Operation
    func: Any = field(repr=False)
    args: tuple[Any, ...]
    """As called, with a `Ref` (or `Opaque`) for every tensor."""
    kwargs: dict[str, Any]
    results: Any
    """The results, with a `Ref` in place of every tensor."""
    is_written: bool
    """Whether it wrote into memory of its arguments."""


@dataclass
class Capture:
    """One to three healthy steps."""

    calls: list[Call] = field(default_factory=list)
    sources: dict[int, Source] = field(default_factory=dict)
    """By the number of the storage."""
    parts: list[Part] = field(default_factory=list)
    num_steps: int = 0
    errors: list[str] = field(default_factory=list)
    """What could not be recorded, as text."""


def refs_in(value: Any) -> Iterator[Ref]:
    """The tensors in arguments or results."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from refs_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from refs_in(item)
