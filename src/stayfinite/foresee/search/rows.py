"""Samples that are blank, constant, repeated or unchanging over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...runtime.rows import take_rows
from .candidates import Candidate, Seen, all_rows, first_row
from .parts import Part, is_rotation, is_unit

__all__ = ["blank", "constant", "inner", "pairs", "repeated", "rest"]

_MOST_PARTS = 6
_SMALL = 8
"""In a batch of so few samples, all may be alike."""
_SPARSE, _VERY_SPARSE = 0.1, 0.85
"""If this share of the values is 0, a 0 means a missing value: a depth that was not measured."""


def _sets(seen: Seen, *kinds: str) -> Iterator[tuple[str, list[Part]]]:
    """All of these parts together, then each by itself."""
    parts = [p for p in seen.of_kind(*kinds) if p.is_float][:_MOST_PARTS]
    if len(parts) > 1:
        yield "every input", parts
    for p in parts:
        yield p.name, [p]


def blank(seen: Seen) -> Iterator[Candidate]:
    """Samples that are all zero: a black image, silence, a missing modality."""
    total = seen.num_rows
    floats = [p for p in seen.of_kind("input", "target") if p.is_float]
    for name, parts in _sets(seen, "input"):
        level = "possible" if all(p.may_be_zero and not p.is_distribution for p in parts) else "far"
        why = _blank_rows(parts, seen)
        level = "likely" if why else level
        how = first_row(torch.zeros_like, total)
        what = f"one sample of {name} all zero"
        yield Candidate("blank", what, seen.changed(parts, how), level, why)
    yield from _blank_targets(seen, floats)
    for name, parts in _sets(seen, "input"):
        # A modality may be missing from a whole batch; everything at once is nobody's data.
        is_one = len(floats) > 1 and len(parts) == 1 and parts[0].tensor.dim() > 1
        level = "possible" if is_one and parts[0].may_be_zero else "far"
        what = f"{name} all zero in a whole batch"
        yield Candidate("blank-batch", what, seen.changed(parts, torch.zeros_like), level)


def _blank_targets(seen: Seen, floats: list[Part]) -> Iterator[Candidate]:
    """Silence to be predicted, nothing relevant in a list; and a sample that is blank in every part."""
    how = first_row(torch.zeros_like, seen.num_rows)
    targets = [p for p in floats if p.kind == "target" and p.has_rows and p.tensor.dim() > 1]
    for p in targets[:_MOST_PARTS]:
        is_near = _may_be_blank(p) and p.may_rest
        what = f"one sample of {p.name} all zero"
        yield Candidate("blank", what, seen.changed([p], how), "possible" if is_near else "far")
    for p in targets[:_MOST_PARTS]:
        if p.is_positive and p.zero_share >= _SPARSE:
            total = seen.num_rows or 1
            is_near = total <= 2 or (p.zero_share > _VERY_SPARSE and total <= 4)
            what = f"{p.name} all zero in a whole batch"
            why = f"{p.zero_share:.0%} of its values seen are 0"
            make = seen.changed([p], torch.zeros_like)
            yield Candidate("blank-batch", what, make, "possible" if is_near else "far", why)
    wide = [p for p in floats if p.has_rows and p.tensor.dim() > 1]
    if targets and len(wide) > len(targets):
        is_near = all(_may_be_blank(p) for p in wide) and all(p.may_rest for p in targets)
        level = "possible" if is_near else "far"
        make = seen.changed(wide, how)
        yield Candidate("blank", "one sample that is all zero in every part", make, level)


def _may_be_blank(p: Part) -> bool:
    """Zero fits; where only a few numbers are used, it is one of them."""
    is_known = not p.is_code or bool((p.tensor == 0).any())
    return p.may_be_zero and is_known and not (p.is_distribution or p.is_unit)


def _blank_rows(parts: list[Part], seen: Seen) -> str:
    """The number of such samples seen, as text; "" for none."""
    if len(parts) != 1 or not parts[0].has_rows or parts[0].tensor.dim() < 2:
        return ""
    for _, rows in all_rows(parts, seen.batches):
        number = int((rows == 0).all(1).sum())
        return f"{number} of {len(rows):,} samples seen are like it" if number else ""
    return ""


def constant(seen: Seen) -> Iterator[Candidate]:
    """Samples without any variance: a stuck sensor, a flat line."""
    total = seen.num_rows
    for name, parts in (*_sets(seen, "input"), *_sets(seen, "target")):
        if all(p.tensor.dim() < 2 for p in parts):
            continue
        for words, value in _levels():
            how = first_row(_flat(value), total)
            what = f"one sample of {name} constant ({words})"
            level = "far" if any(p.is_code for p in parts) else "possible"
            yield Candidate("constant", what, seen.changed(parts, how), level)
    for p in seen.of_kind("input", "mask"):
        if p.tensor.dim() == 2 and p.has_rows and p.is_float and p.tensor.shape[1] > 1:
            level = "far" if p.is_distribution or (p.is_code and p.kind == "input") else "possible"
            what = f"one feature of {p.name} the same in a whole batch"
            yield Candidate("column", what, seen.changed([p], _same_column), level)
    for p in seen.of_kind("input"):
        if p.tensor.dim() >= 3 and p.has_rows and p.is_float and p.tensor.shape[1] > 1:
            level = "possible" if p.may_be_zero and not p.is_code else "far"
            what = f"the first channel of {p.name} dead (0) in a whole batch"
            yield Candidate("column", what, seen.changed([p], _zero_entry), level)
    for p in seen.of_kind("input", "target"):
        if p.tensor.dim() == 1 and p.has_rows and p.is_float:
            how = _flat(lambda t: t[:1])
            what = f"the same {p.name} in a whole batch"
            yield Candidate("equal", what, seen.changed([p], how))


def _same_column(t: Tensor) -> Tensor:
    new = t.clone()
    new[:, 0] = new[0, 0]
    return new


def _levels() -> list[tuple[str, Callable[[Tensor], Tensor]]]:
    return [
        ("its mean", lambda t: t.float().mean()),
        ("its largest value", lambda t: t.max()),
        ("its smallest value", lambda t: t.min()),
    ]


def _flat(value: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def changed(t: Tensor) -> Tensor:
        return torch.zeros_like(t) + value(t).to(t.dtype)

    return changed


def repeated(seen: Seen) -> Iterator[Candidate]:
    """The same sample twice in one batch, or all over."""
    total = seen.num_rows
    if total is None or not seen.can_change_rows:
        return
    batch = seen.batch
    rows = [0, 0, *range(2, total)]
    yield Candidate("repeated", "the same sample twice", lambda: take_rows(batch, rows, total))
    yield Candidate(
        "repeated-batch", "the same sample all over",
        lambda: take_rows(batch, [0] * total, total), "far" if total > _SMALL else "possible",
    )  # fmt: skip
    for p in seen.of_kind("input", "target"):
        if p.has_rows and p.is_float and p.tensor.dim() > 1:
            how = _take(rows)
            yield Candidate(
                "repeated", f"two samples with the same {p.name}", seen.changed([p], how)
            )


def _take(rows: list[int]) -> Callable[[Tensor], Tensor]:
    return lambda t: t[rows]


def pairs(seen: Seen) -> Iterator[Candidate]:
    """Two parts of one shape that agree: a duplicate pair, a prediction that hits its target."""
    floats = [p for p in seen.of_kind("input", "target") if p.is_float and p.tensor.dim() > 1]
    for i, a in enumerate(floats[:_MOST_PARTS]):
        for b in floats[i + 1 : _MOST_PARTS]:
            if a.tensor.shape == b.tensor.shape and a.tensor.dtype == b.tensor.dtype:
                how = _from(b.tensor, seen.num_rows)
                what = f"one sample whose {a.name} is its {b.name}"
                yield Candidate("pair", what, seen.changed([a], how))


def _from(other: Tensor, total: int | None) -> Callable[[Tensor], Tensor]:
    def changed(t: Tensor) -> Tensor:
        new = t.clone()
        if total is None or t.shape[0] != total:
            return other.detach().clone()
        new[0] = other.detach()[0]
        return new

    return changed


def rest(seen: Seen) -> Iterator[Candidate]:
    """The rest state: zero inputs, with unit vectors and rotations at the identity."""
    total = seen.num_rows
    floats = [p for p in seen.of_kind("input", "target") if p.is_float and p.tensor.dim() > 1]
    special = [p for p in floats if p.is_unit or p.is_rotation]
    for p in special:
        how = first_row(_identity, total)
        yield Candidate(
            "rest", f"one sample of {p.name} that is the identity", seen.changed([p], how)
        )
    blanks = [p for p in floats if p not in special and p.kind == "input" and p.may_be_zero]
    if special and blanks:
        make = seen.changed([*special, *blanks], _resting(total))
        yield Candidate("rest", "one sample at rest: no input, and the identity", make)


def _resting(total: int | None) -> Callable[[Tensor], Tensor]:
    def changed(t: Tensor) -> Tensor:
        how = _identity if _unit_like(t) else torch.zeros_like
        return first_row(how, total)(t)

    return changed


def _unit_like(t: Tensor) -> bool:
    return is_unit(t) or is_rotation(t)


def _identity(t: Tensor) -> Tensor:
    new = torch.zeros_like(t)
    if is_rotation(t):
        new.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    else:
        new[..., 0] = 1.0
    return new


def inner(seen: Seen) -> Iterator[Candidate]:
    """Inside one sample: a point without neighbors, steps at rest, two equal points."""
    total = seen.num_rows
    for p in seen.of_kind("input", "mask", "target"):
        t = p.tensor
        level = "far" if p.is_code and p.kind != "mask" else "possible"
        is_square = t.dim() >= 2 and t.shape[-1] == t.shape[-2] and (t.dim() == 2 or p.has_rows)
        if p.kind == "mask" and not is_square:
            continue
        if is_square and (p.is_positive and t.dim() <= 3):
            what = f"a point of {p.name} without any entry in its row and column"
            yield Candidate("isolated", what, seen.changed([p], _isolate))
            yield Candidate(
                "isolated", f"two such points of {p.name}", seen.changed([p], _isolate_two)
            )
        if not p.has_rows or not p.is_float or p.kind == "mask":
            continue
        if t.dim() == 2 and t.shape[1] > 2:
            how = first_row(_two_equal, total)
            what = f"one sample of {p.name} with two equal neighbors"
            yield Candidate("inner", what, seen.changed([p], how), level)
        if t.dim() < 3:
            continue
        for words, how in (
            ("with its first entry all zero", _zero_entry),
            ("at rest: every entry the same", lambda t: t[:, :1].expand_as(t)),
            ("with two equal entries", _two_equal),
            ("with its last dimension constant", lambda t: t.mean(-1, keepdim=True).expand_as(t)),
        ):
            if "zero" in words and not p.may_be_zero:
                continue
            what = f"one sample of {p.name} {words}"
            yield Candidate("inner", what, seen.changed([p], first_row(how, total)), level)


def _isolate(t: Tensor, number: int = 1) -> Tensor:
    new = t.clone()
    first = new if new.dim() == 2 else new[0]
    first[-number:, :] = 0
    first[:, -number:] = 0
    return new


def _isolate_two(t: Tensor) -> Tensor:
    return _isolate(t, min(2, t.shape[-1] - 1))


def _zero_entry(t: Tensor) -> Tensor:
    new = t.clone()
    new[:, 0] = 0
    return new


def _two_equal(t: Tensor) -> Tensor:
    new = t.clone()
    if t.shape[1] > 1:
        new[:, 1] = new[:, 0]
    return new
