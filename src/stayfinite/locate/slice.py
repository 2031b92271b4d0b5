"""The backward slice: from a symptom through the producers of bad values to their birth."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..numerics.health import badness, stats
from ..records import Link, Location, Operand
from .notes import DISCARDS, BadInput, Note, SourceRef, descendants
from .trace import OpTrace

__all__ = ["DISCARDS", "Origin", "find_origin", "last_origin", "to_location"]

_SOFTMAX = ("aten._softmax", "aten._log_softmax", "aten.logsumexp", "aten._safe_softmax")
_MASK_AWARE = (
    *_SOFTMAX,
    "aten.masked_fill", "aten.masked_fill_", "aten.where", "aten.add", "aten.add_", "aten.sub",
    "aten.mul", "aten.div", "aten.neg", "aten.clone", "aten._to_copy", "aten.copy_", "aten.maximum",
    "aten.minimum", "aten.cat", "aten.triu", "aten.tril", "aten.full", "aten.full_like",
    "aten.scalar_tensor", "aten.lift_fresh", "aten.log", "aten.fill_", "aten.stack",
    "aten.constant_pad_nd", "aten.expand", "aten.repeat", "aten.permute", "aten.index_put_",
)  # fmt: skip
_MAX_CHAIN = 12


@dataclass(frozen=True)
class Origin:
    """The end of the slice."""

    birth: Note | None
    source: SourceRef | None
    path: tuple[Note, ...]
    """From the earliest link to the symptom."""
    consumer: Note | None = None
    """For a source: the first operator that used the bad value."""


@dataclass(frozen=True)
class _End:
    path: tuple[Note, ...]
    kind: str
    """birth | source | sentinel | uninitialized | unknown"""
    source: SourceRef | None = None

    @property
    def order(self) -> int:
        return self.path[0].index


def find_origin(trace: OpTrace, symptoms: Iterable[Tensor]) -> Origin | None:
    """Find the origin of the non-finite values in `symptoms`; None if none of them is bad."""
    ends: list[_End] = []
    untouched: SourceRef | None = None
    for tensor in symptoms:
        bad = badness(tensor)
        if not bad:
            continue
        producers = trace.writers.find(tensor)
        if not producers:
            untouched = untouched or trace.source_of(tensor)
            continue
        for index in producers:
            ends += _walk(trace, index, "nan" if bad.has_nan else "inf", set())
    if not ends:
        return Origin(None, untouched, ()) if untouched is not None else None
    return _choose(trace, ends)


def last_origin(trace: OpTrace) -> Origin | None:
    """The origin of the last non-finite result, if the code that used it has raised."""
    note = next((n for n in reversed(trace.notes) if not n.is_uninitialized), None)
    if note is None:
        return None
    return _choose(trace, _walk(trace, note.index, "nan" if note.bad.has_nan else "inf", set()))


def _walk(trace: OpTrace, index: int, kind: str, seen: set[tuple[int, str]]) -> list[_End]:
    """All ends of the slice above one bad operator. Iterative, because chains can have thousands of links."""
    ends: list[_End] = []
    todo: list[tuple[int, str, tuple[Note, ...]]] = [(index, kind, ())]
    while todo:
        number, kind, below = todo.pop()
        if (number, kind) in seen:
            continue
        seen.add((number, kind))
        note = trace.notes[number]
        path = (note, *below)
        if note.is_uninitialized:
            ends.append(_End(path, "uninitialized"))
            continue
        followed, kind = _follow(note, kind)
        if kind == "nan_from_inf" or not followed:
            ends.append(_End(path, "sentinel" if _is_sentinel(note, kind) else "birth"))
        elif note.has_fresh_nan or note.has_fresh_inf:
            ends.append(_End(path, "fresh"))
        for bad_input in followed:
            next_kind = "nan" if kind == "nan" else "inf"
            if bad_input.producers:
                todo += [(p, next_kind, path) for p in bad_input.producers]
            elif bad_input.source is not None:
                ends.append(_End(path, "source", bad_input.source))
            else:
                ends.append(_End(path, "unknown"))
    return ends


def _follow(note: Note, kind: str) -> tuple[list[BadInput], str]:
    """The bad inputs that explain this result, and whether a NaN was made here from an Inf."""
    with_nan = [b for b in note.bad_inputs if b.bad.has_nan]
    with_inf = [b for b in note.bad_inputs if b.bad.has_inf]
    if kind == "nan" and note.bad.has_nan:
        if with_nan:
            return with_nan, "nan"
        return with_inf, "nan_from_inf" if with_inf else "nan"
    if with_inf:
        return with_inf, "inf"
    return with_nan, "nan" if with_nan else kind


def _is_sentinel(note: Note, kind: str) -> bool:
    return kind == "inf" and note.has_written_inf and not note.bad_inputs


def _choose(trace: OpTrace, ends: Sequence[_End]) -> Origin:
    """Choose one origin from all ends. See docs/ARCHITECTURE.md, "What counts as the origin"."""
    nan_births = {e.path[0].index: e for e in ends if e.kind == "birth" and _made_nan_of_inf(e)}
    for end in sorted(nan_births.values(), key=lambda e: e.order):
        masked = end.path[0].facts.get("rows_all_neginf", 0) > 0
        poisoned = end.path[0].facts.get("rows_with_nan_or_posinf", 0) > 0
        if end.path[0].op in _SOFTMAX and masked and not poisoned:
            return _origin(end, _lead_in(ends, end))
    returned = [e for e in ends if _is_returned(trace, e)]
    real = [e for e in ends if e not in returned and _is_real_end(e)]
    if real:
        best = min(real, key=_preference)
        return _origin(best, ())
    if returned:
        best = min(returned, key=lambda e: e.order)
        back = next(n for n in best.path if n.direction == "backward")
        return Origin(back, best.source, best.path)
    if nan_births:
        best = min(nan_births.values(), key=lambda e: e.order)
        return _origin(best, _lead_in(ends, best))
    fresh = [e for e in ends if e.kind == "fresh"]
    if fresh:
        return _origin(min(fresh, key=lambda e: e.order), ())
    return _consumption(min(ends, key=lambda e: e.order))


def _preference(end: _End) -> tuple[int, int]:
    return (0 if end.kind != "unknown" else 1, end.order)


def _made_nan_of_inf(end: _End) -> bool:
    note = end.path[0]
    return note.bad.has_nan and any(b.bad.has_inf for b in note.bad_inputs)


def _is_returned(trace: OpTrace, end: _End) -> bool:
    """A gap in the batch that the forward masks correctly, and the backward reintroduces."""
    if end.kind != "source" or end.source is None or end.source.kind != "batch":
        return False
    if end.path[0].direction != "forward" or end.path[-1].direction != "backward":
        return False
    absorbers = {a for n in descendants(trace.notes, end.path[:1]) for a in n.absorbed_by}
    return bool(absorbers) and absorbers <= DISCARDS


def _is_real_end(end: _End) -> bool:
    """Whether this is a birth from finite inputs, or an existing NaN; not an infinity of a mask."""
    if end.kind == "uninitialized":
        return True
    if end.kind == "birth":
        if _made_nan_of_inf(end):
            return False
        return not _was_discarded(end)
    if end.kind == "source":
        assert end.source is not None
        return not _is_mask(end.source, end.path)
    if end.kind == "unknown":
        return any(b.bad.has_nan for b in end.path[0].bad_inputs)
    return False


def _is_mask(source: SourceRef, path: Sequence[Note]) -> bool:
    """Whether this is a -inf that a softmax removes. +inf masks nothing, and trained values are not masks."""
    bad = badness(source.tensor)
    if bad.has_nan or bad.has_posinf or source.kind not in ("batch", "buffer"):
        return False
    return any(n.op in _SOFTMAX for n in _up_to_nan(path))


def _up_to_nan(path: Sequence[Note]) -> Sequence[Note]:
    """The part of a path on which an Inf is still an Inf, and the operator that made it NaN."""
    for i, note in enumerate(path):
        if _turned(note):
            return path[: i + 1]
    return path


def _was_discarded(end: _End) -> bool:
    """For an Inf that the forward made and a mask discarded: the operator that reintroduced it."""
    if end.path[0].direction != "forward" or end.path[-1].direction != "backward":
        return False
    if not any(_turned(n) for n in end.path if n.direction == "backward"):
        return False
    absorbers = {a for n in end.path if n.direction == "forward" for a in n.absorbed_by}
    return bool(absorbers) and absorbers <= DISCARDS


def _turned(note: Note) -> bool:
    """Whether this operator made a NaN from an Inf."""
    return note.bad.has_nan and not any(b.bad.has_nan for b in note.bad_inputs)


def _lead_in(ends: Sequence[_End], birth: _End) -> tuple[Note, ...]:
    """The links above the birth of a NaN: the origin of the Inf that it was made from."""
    number = birth.path[0].index
    for end in ends:
        numbers = [n.index for n in end.path]
        if end is not birth and number in numbers and end.order < number:
            return end.path[: numbers.index(number)]
    return ()


def _origin(end: _End, lead: tuple[Note, ...]) -> Origin:
    if end.kind in ("source", "unknown"):
        source = end.source
        return Origin(None, source, (*lead, *end.path), end.path[0])
    return Origin(end.path[0], None, (*lead, *end.path))


def _consumption(end: _End) -> Origin:
    """If only a written infinity explains it: the first operator that is not made for masks."""
    for note in end.path:
        if note.op not in _MASK_AWARE:
            return Origin(note, end.source, end.path)
    return Origin(end.path[-1], end.source, end.path)


def to_location(origin: Origin, method: str = "replay") -> Location:
    """Convert an origin to a record with a short chain."""
    chain = [_link(n, origin) for n in origin.path]
    is_returned = origin.birth is not None and origin.birth.direction == "backward"
    if origin.source is not None and (origin.birth is None or is_returned):
        operand = Operand(name=origin.source.name, label=origin.source.kind)
        source_link = Link(
            op=None,
            role="source",
            direction="none",
            label=f"{origin.source.kind} {origin.source.name}",
            module=_owner(origin.source),
            outputs=(replace(operand, stats=stats(origin.source.tensor)),),
        )
        chain.insert(0, source_link)
    if chain and chain[-1].role == "carrier":
        chain[-1] = replace(chain[-1], role="symptom")
    main = next((c for c in chain if c.role == "birth"), chain[0] if chain else None)
    place = main
    if (
        main is not None
        and main.role == "source"
        and origin.consumer is not None
        and len(chain) > 1
    ):
        place = chain[1]
    if main is None or place is None:
        source = origin.source
        return Location(module=_owner(source) if source else None, method=method)
    return Location(
        op=main.op,
        module=main.module,
        file=place.file,
        line=place.line,
        source=place.source,
        function=place.function,
        library_file=place.library_file,
        library_line=place.library_line,
        library_source=place.library_source,
        chain=_shorten(chain, main),
        method=method,
    )


def _shorten(chain: list[Link], main: Link) -> tuple[Link, ...]:
    if len(chain) <= _MAX_CHAIN:
        return tuple(chain)
    at = next(i for i, c in enumerate(chain) if c is main)
    start = max(0, min(at - 2, len(chain) - _MAX_CHAIN))
    head, tail = chain[start : start + _MAX_CHAIN - 3], chain[-3:]
    num_between = len(chain) - start - len(head) - len(tail)
    head[0] = replace(head[0], num_left_out=start)
    tail[0] = replace(tail[0], num_left_out=num_between)
    return (*head, *tail)


def _owner(source: SourceRef) -> str | None:
    if source.kind in ("parameter", "buffer", "gradient"):
        return source.name.rpartition(".")[0]
    return None


def _link(note: Note, origin: Origin) -> Link:
    if origin.birth is not None and note is origin.birth:
        role = "birth"
    elif note.has_written_inf and not note.bad_inputs:
        role = "sentinel"
    else:
        role = "carrier"
    user, library = note.place.user, note.place.library
    return Link(
        op=note.op,
        kernel=note.kernel if note.kernel != note.op else None,
        role=role,
        direction=note.direction,
        module=note.module,
        module_type=note.module_type,
        file=_full_path(user.file) if user else None,
        line=user.line if user else None,
        source=user.source if user else None,
        function=user.function if user else None,
        library_file=_full_path(library.file) if library else None,
        library_line=library.line if library else None,
        library_source=library.source if library else None,
        inputs=note.inputs,
        outputs=note.outputs,
        facts=note.facts,
    )


def _full_path(file: str) -> str:
    return file if file.startswith("<") else os.path.abspath(file)
