"""Batches that real data will bring one day: blank, constant, repeated, masked, short."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..runtime.batches import named_tensors
from ..runtime.rows import map_tensors, num_rows, take_rows
from .edges_padding import padding_of
from .probes import Subject

__all__ = ["Edge", "Part", "edges_of", "parts_of"]

_TARGET = re.compile(r"(label|target|\by\b|_y\b|\['y'\])", re.IGNORECASE)
IGNORED = -100
"""What torch's cross entropy leaves out by default."""
_EPOCHS = 10
_UNKNOWN_EPOCH = 1000
_EXPECTED = 1e-2
"""A batch that comes less often than once in a hundred such runs is only mentioned."""


@dataclass(frozen=True)
class Part:
    """One tensor of the batch and what it seems to be."""

    name: str
    tensor: Tensor
    kind: str
    """input | mask | labels | lengths | tokens | target"""


@dataclass(frozen=True)
class Edge:
    """One batch to try; `milder` is tried if this one breaks, to tell how near the edge is."""

    check: str
    what: str
    batch: Any
    milder: Edge | None = None
    is_certain: bool = False
    """This batch will come: it follows from the loader."""
    is_likely: bool = True
    """If it breaks, the user should act; otherwise it is only mentioned, with `note`."""
    note: str = "but such a batch is not to be expected"
    action: str = ""


def parts_of(batches: Sequence[Any]) -> list[Part]:
    """What each tensor of the first batch seems to be.

    >>> x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    >>> [(p.name, p.kind) for p in parts_of([(x, y)])]
    [('batch[0]', 'input'), ('batch[1]', 'labels')]
    """
    named = [
        (n, t) for n, t in named_tensors(batches[0]) if t.numel() and t.layout is torch.strided
    ]
    total = num_rows(batches[0])
    last = named[-1][0] if len(named) > 1 else None
    widths = [t.shape[1] for _, t in named if t.dim() > 1]
    return [Part(n, t, _kind(n, t, total, widths, n == last)) for n, t in named]


def _kind(name: str, t: Tensor, total: int | None, widths: list[int], is_last: bool) -> str:
    if t.dtype == torch.bool or (t.dim() > 1 and _is_binary(t)):
        return "mask"
    if t.is_floating_point():
        return "target" if is_last or _TARGET.search(name) else "input"
    is_target = is_last or bool(_TARGET.search(name))
    may_be_lengths = t.dim() == 1 and t.shape[0] == total and _fits_lengths(t, widths)
    # Class numbers rarely reach exactly the width of another tensor; lengths do.
    if may_be_lengths and ("len" in name.lower() or not is_target or int(t.max()) in widths):
        return "lengths"
    return "labels" if is_target else "tokens"


def _fits_lengths(t: Tensor, widths: list[int]) -> bool:
    return bool(widths) and int(t.min()) >= 1 and int(t.max()) <= max(widths)


def _is_binary(t: Tensor) -> bool:
    if t.is_complex():
        return False
    return bool(((t == 0) | (t == 1)).all()) and (bool((t == 0).any()) or not t.is_floating_point())


def edges_of(subject: Subject) -> Iterator[Edge]:
    """Every batch worth trying on this training."""
    batch = subject.batches[0]
    parts = parts_of(subject.batches)
    total = num_rows(batch)
    if subject.can_change_rows and total is not None:
        yield from _sizes(subject, batch, total)
    inputs = [p for p in parts if p.kind == "input"]
    if inputs:
        yield from _values(batch, inputs, total)
    if subject.can_change_rows and total is not None:
        yield from _repeats(subject, parts, total)
    yield from _masks(batch, [p for p in parts if p.kind == "mask"], total)
    yield from _sequences(subject, batch, parts, total)
    for part in parts:
        padding = padding_of(part.name, subject.batches) if part.kind == "tokens" else None
        if padding is not None:
            changed = change(batch, [part], _first_row(_filled(padding), total))
            what = f"one sequence of {part.name} with nothing but padding ({padding})"
            yield Edge("edges/only-padding", what, changed)


def change(batch: Any, parts: Sequence[Part], how: Callable[[Tensor], Tensor]) -> Any:
    """The batch with these tensors changed; the batch itself stays as it is."""
    new = {id(p.tensor): how(p.tensor.detach()).to(p.tensor.dtype) for p in parts}
    return map_tensors(batch, lambda t: new.get(id(t), t))


def _sizes(subject: Subject, batch: Any, total: int) -> Iterator[Edge]:
    left = _last_batch(subject, total)
    action = "set drop_last=True in the loader, or make this line work for any number of samples"
    if left is not None and left > 1:
        what = f"the last batch of an epoch ({left} samples)"
        last = take_rows(batch, range(left), total)
        yield Edge("edges/last-batch", what, last, is_certain=True, action=action)
    yield Edge(
        "edges/batch-of-1",
        "the last batch of an epoch (one sample)" if left == 1 else "a batch of one sample",
        take_rows(batch, [0], total),
        is_certain=left == 1,
        is_likely=False,
        action=action,
        note="mind the last one of an epoch" if left is None else "but the loader makes none",
    )


def _last_batch(subject: Subject, total: int) -> int | None:
    """How many samples the last batch of an epoch has; 0 if it is full or dropped, None: unknown."""
    for loader in subject.loaders:
        size = getattr(loader, "batch_size", None)
        if size != total:
            continue
        if loader.drop_last:
            return 0
        try:
            return len(loader.dataset) % total
        except (TypeError, AttributeError):
            return None
    return None


def _first_row(how: Callable[[Tensor], Tensor], total: int | None) -> Callable[[Tensor], Tensor]:
    """The same change for the first sample only."""

    def changed(t: Tensor) -> Tensor:
        if total is None or t.dim() == 0 or t.shape[0] != total:
            return how(t)
        new = t.clone()
        new[0] = how(t[0:1])[0]
        return new

    return changed


def _values(batch: Any, inputs: list[Part], total: int | None) -> Iterator[Edge]:
    whole: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "edges/zero": ("all zero", torch.zeros_like),
        "edges/constant": ("one constant value", lambda t: torch.full_like(t, _middle(t))),
    }
    for check, (words, how) in whole.items():
        one = Edge(
            check, f"one sample that is {words}", change(batch, inputs, _first_row(how, total))
        )
        yield Edge(check, f"a whole batch that is {words}", change(batch, inputs, how), one)
    for check, far, near in (("edges/huge", 1e4, 1e2), ("edges/tiny", 1e-12, 1e-4)):
        milder = Edge(check, f"inputs times {near:g}", change(batch, inputs, _times(near)))
        yield Edge(check, f"inputs times {far:g}", change(batch, inputs, _times(far)), milder)


def _times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda t: t * factor


def _filled(value: int) -> Callable[[Tensor], Tensor]:
    return lambda t: torch.full_like(t, value)


def _middle(t: Tensor) -> float:
    finite = t[torch.isfinite(t)]
    return float(finite.float().mean()) if finite.numel() else 0.0


def _repeats(subject: Subject, parts: list[Part], total: int) -> Iterator[Edge]:
    batch = subject.batches[0]
    pair = take_rows(batch, [0, 0, *range(2, total)], total)
    yield Edge(
        "edges/repeated",
        "the same sample all over",
        take_rows(batch, [0] * total, total),
        Edge("edges/repeated", "the same sample twice", pair),
    )
    labels = [p for p in parts if p.kind == "labels" and p.tensor.dim() == 1]
    if labels and any(bool((p.tensor != p.tensor[0]).any()) for p in labels):
        same = change(batch, labels, lambda t: torch.full_like(t, int(t[0])))
        share = max(_largest_class(p.name, subject.batches) for p in labels)
        chance = _chance(subject, share, total)
        yield Edge("edges/one-class", "a batch with one class only", same, is_likely=chance)
    ignoring = [p for p in parts if p.kind == "labels" and bool((p.tensor == IGNORED).any())]
    if ignoring:
        none = change(batch, ignoring, lambda t: torch.full_like(t, IGNORED))
        share = max(_unlabeled_rows(p.name, subject.batches) for p in ignoring)
        chance = _chance(subject, share, total)
        what = "a batch in which every label is ignored"
        yield Edge("edges/no-label", what, none, is_likely=chance)


def _chance(subject: Subject, share: float, total: int) -> bool:
    """Whether a batch made up of this share of the samples only is to be expected in a long run."""
    try:
        num_batches = max(len(loader) for loader in subject.loaders)
    except (TypeError, ValueError):
        num_batches = _UNKNOWN_EPOCH
    return share**total * num_batches * _EPOCHS > _EXPECTED


def _all_labels(name: str, batches: Sequence[Any]) -> list[Tensor]:
    return [t for b in batches for n, t in named_tensors(b) if n == name]


def _largest_class(name: str, batches: Sequence[Any]) -> float:
    labels = torch.cat(_all_labels(name, batches))
    return float(labels.unique(return_counts=True)[1].max()) / labels.numel()


def _unlabeled_rows(name: str, batches: Sequence[Any]) -> float:
    rows = torch.cat(
        [
            (t == IGNORED).flatten(1).all(1) if t.dim() > 1 else t == IGNORED
            for t in _all_labels(name, batches)
        ]
    )
    return float(rows.float().mean())


def _masks(batch: Any, masks: list[Part], total: int | None) -> Iterator[Edge]:
    for part in masks:
        for check, value in (("edges/empty-mask", 0), ("edges/full-mask", 1)):
            how = _first_row(_filled(value), total)
            changed = change(batch, [part], how)
            yield Edge(
                check, f"{part.name} {'all 1' if value else 'all 0'} for one sample", changed
            )


def _sequences(
    subject: Subject, batch: Any, parts: list[Part], total: int | None
) -> Iterator[Edge]:
    lengths = [p for p in parts if p.kind == "lengths"]
    seen = {p.name: _range_of(p.name, subject.batches) for p in lengths}
    for part in lengths:
        for check, index in (("edges/shortest", 0), ("edges/longest", 1)):
            # The others at their other end: a short recording with a long transcript.
            how = {id(p.tensor): seen[p.name][index if p is part else 1 - index] for p in lengths}
            changed = map_tensors(batch, _first_set(how))
            word = "shortest" if index == 0 else "longest"
            against = " against the other lengths' extreme" if len(lengths) > 1 else ""
            what = f"{part.name} of one sample at its {word}, {seen[part.name][index]}{against}"
            yield Edge(check, what, changed)
    yield from _cut(subject, batch, parts, total)


def _range_of(name: str, batches: Sequence[Any]) -> tuple[int, int]:
    tensors = [t for b in batches for n, t in named_tensors(b) if n == name]
    return min(int(t.min()) for t in tensors), max(int(t.max()) for t in tensors)


def _first_set(values: dict[int, int]) -> Callable[[Tensor], Tensor]:
    def changed(t: Tensor) -> Tensor:
        if id(t) not in values:
            return t
        new = t.clone()
        new[0] = values[id(t)]
        return new

    return changed


def _cut(subject: Subject, batch: Any, parts: list[Part], total: int | None) -> Iterator[Edge]:
    """Sequences padded to the longest of their batch: a batch of short ones will come."""
    widths = {_width(b) for b in subject.batches} - {None}
    if len(widths) < 2 or not subject.can_change_rows:
        return
    width = _width(batch)
    short = map_tensors(batch, lambda t: t[:, :1] if t.dim() > 1 and t.shape[1] == width else t)
    yield Edge("edges/shortest", "a batch of sequences of length 1", short)


def _width(batch: Any) -> int | None:
    """The length that the batch's sequences are padded to."""
    sizes = [t.shape[1] for _, t in named_tensors(batch) if t.dim() > 1]
    return sizes[0] if sizes else None
