"""Compares two checkpoints tensor by tensor."""

from __future__ import annotations

import os
from dataclasses import replace

from ..errors import UsageError
from .compare import change_between, open_tensors
from .contents import NamedTensor
from .limits import DEFAULT_LIMITS, FileFault, Limits
from .records import CheckpointReport, DiffReport, TensorDiff
from .scanner import scan
from .tree import clean
from .usual import ROLE_ORDER, layer_diffs, usual_changes

__all__ = ["diff"]

_ORDER = ("incomparable", "reshaped", "only_in_a", "only_in_b", "changed", "same")


def diff(
    a: str | os.PathLike[str], b: str | os.PathLike[str], *, limits: Limits = DEFAULT_LIMITS
) -> DiffReport:
    """Compare two checkpoints: files, or folders with one checkpoint each.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"w": torch.ones(4), "b": torch.ones(2)}, f"{folder}/a.pt")
    ...     torch.save({"w": torch.full((4,), 1.5), "b": torch.ones(2)}, f"{folder}/b.pt")
    ...     report = diff(f"{folder}/a.pt", f"{folder}/b.pt")
    >>> [(t.name, t.status, t.relative_change) for t in report.tensors]
    [('w', 'changed', 0.5), ('b', 'same', 0.0)]
    """
    left = scan([a], timeline=False, limits=limits).checkpoints
    right = scan([b], timeline=False, limits=limits).checkpoints
    for path, found in ((a, left), (b, right)):
        _check_single(os.fspath(path), [c.path for c in found])
    for checkpoint in (left[0], right[0]):
        _check_comparable(checkpoint)
    with open_tensors(left[0], limits) as x, open_tensors(right[0], limits) as y:
        if not x and not y:
            raise FileFault("unreadable", "nothing to compare: there is no tensor in either")
        rows = [_row(name, x.get(name), y.get(name)) for name in dict.fromkeys([*x, *y])]
    usual, source = usual_changes(left[0], right[0], limits)
    rows = [replace(r, usual=usual.get(r.name)) for r in rows]
    layers = layer_diffs(rows)
    return DiffReport(
        a=os.fspath(a),
        b=os.fspath(b),
        tensors=tuple(sorted(rows, key=_rank)),
        layers=tuple(layers),
        usual_source=source,
        rates_a=left[0].rates,
        rates_b=right[0].rates,
    )


def _check_comparable(checkpoint: CheckpointReport) -> None:
    """A checkpoint that is unreadable, or would run code, is not compared but reported."""
    if checkpoint.verdict not in ("unreadable", "hostile"):
        return
    everything = [*checkpoint.findings, *(f for r in checkpoint.files for f in r.findings)]
    worst = next(f for f in everything if f.severity == checkpoint.verdict)
    raise FileFault(
        worst.code,
        f"{clean(checkpoint.path)} is {checkpoint.verdict} and cannot be compared: {worst.message}",
    )


def _rank(row: TensorDiff) -> tuple[int, bool, int, float]:
    """Sort weights before Adam's moments, and new non-finite values first."""
    has_same_badness = row.num_nonfinite_a == row.num_nonfinite_b
    part = ROLE_ORDER.index(row.role) if row.role in ROLE_ORDER else len(ROLE_ORDER)
    return part, has_same_badness, _ORDER.index(row.status), -(row.relative_change or 0.0)


def _check_single(path: str, found: list[str]) -> None:
    if len(found) != 1:
        listed = "".join(f"\n  {p}" for p in found[:10])
        raise UsageError(
            f"{path} holds {len(found)} checkpoints, diff compares one with one{listed}"
        )


def _row(name: str, a: NamedTensor | None, b: NamedTensor | None) -> TensorDiff:
    if a is None or b is None:
        there = b if a is None else a
        assert there is not None
        detail = f"{there.ref.dtype} {list(there.ref.size)}"
        status = "only_in_b" if a is None else "only_in_a"
        return TensorDiff(name=name, status=status, detail=detail, role=there.role)
    if a.ref.size != b.ref.size:
        shapes = f"{list(a.ref.size)} → {list(b.ref.size)}"
        return TensorDiff(name=name, status="reshaped", detail=shapes, role=a.role)
    try:
        change = change_between(a, b)
    except FileFault as e:
        return TensorDiff(name=name, status="incomparable", detail=str(e), role=a.role)
    is_same = change.num_changed == 0 and change.num_nonfinite_a == change.num_nonfinite_b
    detail = f"{a.ref.dtype} → {b.ref.dtype}" if a.ref.dtype != b.ref.dtype else ""
    return TensorDiff(
        name=name,
        status="same" if is_same and not detail else "changed",
        detail=detail,
        relative_change=change.relative,
        max_abs_change=change.max_abs,
        num_changed=change.num_changed,
        num_nonfinite_a=change.num_nonfinite_a,
        num_nonfinite_b=change.num_nonfinite_b,
        role=a.role,
        norm_a=change.norm_a,
        norm_b=change.norm_b,
        norm_change=change.norm_change,
    )
