"""Packed sequences: one with a single step among the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from .candidates import Candidate, Seen
from .plain_numbers import put

__all__ = ["packed"]

_SHORT = 4
"""If a sequence as short as this was seen, one of a single step is possible."""


def packed(seen: Seen) -> Iterator[Candidate]:
    """The shortest sequence cut to its first step; a sequence that is all zero."""
    for path, value in _packed(seen.batch):
        shown = "".join(f"[{key!r}]" for key in path)
        shortest = min(_shortest(v) for b in seen.batches for _, v in _packed(b))
        level = "possible" if shortest <= _SHORT else "far"
        why = f"lengths from {shortest} on were seen"
        what = f"batch{shown} with a sequence of length 1"
        make = _repacked(seen.batch, path, value, lambda t: t[:1])
        yield Candidate("length", what, make, level, why, may_raise=True)
        if value.data.is_floating_point():
            what = f"batch{shown} with a sequence that is all zero"
            make = _repacked(seen.batch, path, value, lambda t: t * 0)
            level = "possible" if bool((value.data <= 0).any()) else "far"
            yield Candidate("blank", what, make, level, may_raise=True)


def _packed(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, PackedSequence):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _packed(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _packed(item, (*path, i))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            yield from _packed(getattr(value, f.name), (*path, f.name))


def _shortest(value: PackedSequence) -> int:
    """The number of steps that every sequence has."""
    return int((value.batch_sizes == value.batch_sizes[0]).sum())


def _repacked(
    batch: Any, path: tuple[Any, ...], value: PackedSequence, how: Callable[[Tensor], Tensor]
) -> Callable[[], Any]:
    """The batch with the shortest sequence of this one changed."""

    def make() -> Any:
        padded, lengths = pad_packed_sequence(value, batch_first=True)
        rows = [padded[i, :n].detach() for i, n in enumerate(lengths.tolist())]
        last = min(range(len(rows)), key=lambda i: (len(rows[i]), -i))
        rows[last] = how(rows[last])
        new = pack_sequence(rows, enforce_sorted=value.sorted_indices is None)
        return put(batch, path, new)

    return make
