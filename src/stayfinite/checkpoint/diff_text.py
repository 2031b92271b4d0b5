"""Renders a comparison of two checkpoints as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from .records import DiffReport, LayerDiff, LearningRates, TensorDiff
from .roles import ROLE_TITLES
from .tree import clean

__all__ = ["describe_diff"]

_MAX_ROWS = 30
_MAX_LISTED = 20_000
_TITLES = {"only_in_a": "only in A", "only_in_b": "only in B"}
_UNUSUAL = 3.0


def describe_diff(report: DiffReport, *, verbose: bool = False) -> Iterator[str]:
    """Render the weights by layer, then what cannot be compared, then the rest in one line each."""
    yield f"A: {clean(report.a, 4096)}"
    yield f"B: {clean(report.b, 4096)}"
    yield from _layers(report, verbose)
    odd = [t for t in report.tensors if t.status not in ("same", "changed")]
    shown = odd[: _MAX_LISTED if verbose else _MAX_ROWS]
    for t in shown:
        yield f"  {_TITLES.get(t.status, t.status):<12}  {t.name}  {t.detail}"
    if len(odd) > len(shown):
        yield f"  … and {len(odd) - len(shown):,} more (--json lists all)"
    if verbose:
        yield from _tensors(report)
    yield from _others(report)
    yield from _rate_changes(report.rates_a, report.rates_b)
    counts: dict[str, int] = {}
    for t in report.tensors:
        counts[t.status] = counts.get(t.status, 0) + 1
    total = ", ".join(f"{n:,} {_TITLES.get(s, s)}" for s, n in counts.items())
    yield f"{len(report.tensors):,} tensors: {total}"


def _layers(report: DiffReport, verbose: bool) -> Iterator[str]:
    changed = [d for d in report.layers if d.num_changed and d.role == "weights"]
    weights = [d for d in report.layers if d.role == "weights"]
    if not weights:
        return
    yield f"weights: {len(changed):,} of {len(weights):,} layers changed"
    if not changed:
        return
    shown = changed if verbose else sorted(changed, key=_weight)[:_MAX_ROWS]
    rows = [("layer", "moved", "usual", "norm", "turned", "")]
    rows += [_cells(d) for d in shown]
    widths = [max(len(r[i]) for r in rows) for i in range(5)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:5], widths[1:]))]
        yield ("  " + "  ".join(cells) + "  " + row[5]).rstrip()
    if len(changed) > len(shown):
        yield f"  … and {len(changed) - len(shown):,} more layers (--verbose shows all)"
    if report.usual_source:
        yield f"  usual: the change between {clean(report.usual_source, 400)}"


def _weight(layer: LayerDiff) -> tuple[bool, float]:
    """Non-finite first, then the largest change."""
    return layer.relative_change is not None, -(layer.relative_change or 0.0)


def _cells(d: LayerDiff) -> tuple[str, str, str, str, str, str]:
    name = d.layer if len(d.layer) <= 48 else "…" + d.layer[-47:]
    if d.relative_change is None:
        bad = f"non-finite: {d.num_nonfinite_a:,} in A, {d.num_nonfinite_b:,} in B"
        return name, "–", "–", "–", "–", bad
    times = d.times_usual
    usual = "–" if times is None else f"{times:.1f}x"
    angle = "–" if d.angle is None else f"{d.angle:.1f}°"
    return name, f"{d.relative_change:.2%}", usual, _growth(d), angle, _remark(d)


def _growth(d: LayerDiff) -> str:
    return "–" if d.growth is None else f"{d.growth:+.1%}"


def _remark(d: LayerDiff) -> str:
    """A sentence about the largest changes."""
    said = []
    if d.times_usual is not None and d.times_usual >= _UNUSUAL:
        said.append("far more than usual")
    if d.growth is not None and abs(d.growth) >= 0.5:
        said.append("grew a lot" if d.growth > 0 else "shrank a lot")
    if d.angle is not None and d.angle >= 45:
        said.append("points elsewhere")
    return ", ".join(said)


def _tensors(report: DiffReport) -> Iterator[str]:
    rows = [t for t in report.tensors if t.status == "changed"]
    for t in rows[:_MAX_LISTED]:
        yield f"  {t.status:<12}  {t.name}  {'; '.join(_facts(t))}"
    if len(rows) > _MAX_LISTED:
        yield f"  … and {len(rows) - _MAX_LISTED:,} more (--json lists all)"


def _facts(t: TensorDiff) -> list[str]:
    parts = [t.detail] if t.detail else []
    if t.relative_change is not None:
        parts.append(
            f"moved {t.relative_change:.3%} of its norm, by {t.max_abs_change:.3g} at most"
        )
        parts.append(f"{t.num_changed:,} values differ")
    if t.num_nonfinite_a or t.num_nonfinite_b:
        parts.append(f"non-finite: {t.num_nonfinite_a:,} in A, {t.num_nonfinite_b:,} in B")
    return parts


def _others(report: DiffReport) -> Iterator[str]:
    """The rest, in one line for each part of the training."""
    roles: dict[str, list[TensorDiff]] = {}
    for t in report.tensors:
        if t.role != "weights" and t.status == "changed":
            roles.setdefault(t.role, []).append(t)
    for role, rows in roles.items():
        bad = sum(t.num_nonfinite_a != t.num_nonfinite_b for t in rows)
        note = f", {bad:,} of them turned non-finite" if bad else ""
        top = max(rows, key=lambda t: (t.num_nonfinite_b, t.relative_change or 0.0))
        most = "" if top.relative_change is None else f" ({top.relative_change:.1%} at most)"
        title = ROLE_TITLES.get(role, role)
        yield f"  {title}: {len(rows):,} tensors changed{note}{most}: {top.name}"


def _rate(values: tuple[float, ...]) -> str:
    distinct = list(dict.fromkeys(f"{v:.3g}" for v in values))
    return "–" if not distinct else "/".join(distinct[:3]) + ("…" if len(distinct) > 3 else "")


def _rate_changes(a: LearningRates, b: LearningRates) -> Iterator[str]:
    for label in ("optimizer", "initial", "peak", "scheduler", "base"):
        x, y = getattr(a, label), getattr(b, label)
        if x != y:
            yield f"  learning rate ({label}): {_rate(x)} → {_rate(y)}"
