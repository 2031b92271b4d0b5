"""Parts of a sample that may be empty: boxes, edges, events, texts, lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ...runtime.batches import named_tensors
from ...runtime.rows import map_tensors
from .candidates import Candidate, Seen
from .parts import Part
from .plain_numbers import leaves, put

__all__ = ["empties", "empty_batches", "plain_empties"]

_MOST_GROUPS = 6
_MOST_PLAIN = 3
_FEW, _SOME = 2, 4
"""If so few items were seen in a sample, another may have none; if so many, one."""
_SHORT = 40
"""If a shorter text than this was seen, an empty one is possible."""
_INDEX = re.compile(r"\[\d+\](?!.*\[\d+\])")
"""The last index in a name: the sample's position in a list."""
_USUAL, _RARE = 1e-2, 1e-5
"""Shares of batches above which such a batch is likely, and above which it is possible."""


def empties(seen: Seen) -> Iterator[Candidate]:
    """Parts whose size differs from batch to batch (boxes, edges, events): none of them, or one.

    Parts of one sample that have always had the same size (its boxes and their labels) go together.
    """
    for group in list(_groups(seen))[:_MOST_GROUPS]:
        names = " and ".join(p.name for p, _ in group)
        smallest = _smallest(seen, *group[0])
        for number, near in ((0, _FEW), (1, _SOME)):
            what = f"{names} with {'nothing in it' if number == 0 else 'one entry'}"
            level = "possible" if smallest <= near else "far"
            why = f"from {smallest} on were seen"
            make = _narrowed(seen, group, number)
            yield Candidate("empty", what, make, level, why, may_raise=True)


def empty_batches(seen: Seen) -> Iterator[Candidate]:
    """Lists with one tensor per sample, all of them empty: a batch of images without an object."""
    fields = [_fields(b) for b in seen.batches]
    together: dict[tuple[int, ...], list[str]] = {}
    for field, tensors in fields[0].items():
        sizes = tuple(t.shape[0] for f in fields for t in f.get(field, ()))
        is_alike = len({(t.dtype, t.shape[1:]) for f in fields for t in f.get(field, ())}) == 1
        if len(tensors) > 1 and is_alike and 0 in sizes:
            together.setdefault(sizes, []).append(field)
    for sizes, names in list(together.items())[:_MOST_GROUPS]:
        share = sizes.count(0) / len(sizes)
        chance = share ** len(fields[0][names[0]])
        level = "likely" if chance > _USUAL else "possible" if chance > _RARE else "far"
        what = f"{' and '.join(names)} with nothing in any of them"
        why = f"{share:.0%} of those seen have nothing in them"
        make = _hollow(seen, {id(t) for n in names for t in fields[0][n]})
        yield Candidate("empty", what, make, level, why, may_raise=True, probability=chance)


def _fields(batch: Any) -> dict[str, list[Tensor]]:
    """The tensors of each list, under the name without the index; the batch's own parts are no list."""
    found: dict[str, list[Tensor]] = {}
    for name, t in named_tensors(batch):
        at = _INDEX.search(name)
        if t.dim() > 0 and at and name[: at.start()] + name[at.end() :] != "batch":
            found.setdefault(_INDEX.sub("[*]", name), []).append(t)
    return found


def _hollow(seen: Seen, wanted: set[int]) -> Callable[[], Any]:
    return lambda: map_tensors(seen.batch, lambda t: t.detach()[:0] if id(t) in wanted else t)


def _smallest(seen: Seen, p: Part, dim: int) -> int:
    """The smallest size seen, of all in the same list."""
    holder = p.name.rpartition("[")[0] if p.name.endswith("]") else p.name
    is_listed = p.name[len(holder) + 1 : -1].isdigit()
    return min(
        t.shape[dim]
        for b in seen.batches
        for n, t in named_tensors(b)
        if n == p.name or (is_listed and n.rpartition("[")[0] == holder and t.dim() > dim)
    )


def _groups(seen: Seen) -> Iterator[list[tuple[Part, int]]]:
    """(part, the dimension that varies) of those that vary together."""
    found: dict[tuple[str, tuple[int, ...]], list[tuple[Part, int]]] = {}
    for p in seen.parts:
        shapes = [t.shape for b in seen.batches for n, t in named_tensors(b) if n == p.name]
        if p.has_rows or not shapes or any(len(s) != p.tensor.dim() for s in shapes):
            continue
        varying = [d for d in range(p.tensor.dim()) if len({s[d] for s in shapes}) > 1]
        if varying:
            holder = p.name.rpartition("[" if p.name.endswith("]") else ".")[0]
            key = (holder, tuple(s[varying[0]] for s in shapes))
            found.setdefault(key, []).append((p, varying[0]))
    yield from found.values()


def _narrowed(seen: Seen, group: list[tuple[Part, int]], number: int) -> Callable[[], Any]:
    dims = {id(p.tensor): dim for p, dim in group}

    def cut(t: Tensor) -> Tensor:
        return t.detach().narrow(dims[id(t)], 0, number) if id(t) in dims else t

    return lambda: map_tensors(seen.batch, cut)


def plain_empties(seen: Seen) -> Iterator[Candidate]:
    """A text without a character, a list of numbers without one, and of only the first."""
    texts = [(path, v) for path, v in leaves(seen.batch) if isinstance(v, str)]
    for path, value in texts[:1]:
        shortest = min(len(v) for b in seen.batches for _, v in leaves(b) if isinstance(v, str))
        shown = "".join(f"[{key!r}]" for key in path)
        for new, words in (("", "an empty text"), (value[:1], "one character")):
            level = "possible" if shortest <= _SHORT else "far"
            why = f"texts from {shortest} characters on were seen"
            make = _replaced(seen, path, new)
            yield Candidate("text", f"batch{shown} {words}", make, level, why, may_raise=True)
    lists = [(path, v) for path, v in leaves(seen.batch) if isinstance(v, list)]
    sizes = {len(v) for b in seen.batches for _, v in leaves(b) if isinstance(v, list)}
    for path, numbers in lists[:_MOST_PLAIN] if len(sizes) > 1 else ():
        shown = "".join(f"[{key!r}]" for key in path)
        for count, near in ((0, _FEW), (1, _SOME)):
            what = f"batch{shown} with {'nothing in it' if count == 0 else 'one entry'}"
            make = _replaced(seen, path, numbers[:count])
            level = "possible" if min(sizes) <= near else "far"
            yield Candidate("empty", what, make, level, f"from {min(sizes)} on", may_raise=True)


def _replaced(seen: Seen, path: tuple[Any, ...], new: Any) -> Callable[[], Any]:
    return lambda: put(seen.batch, path, new)
