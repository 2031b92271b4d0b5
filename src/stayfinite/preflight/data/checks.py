"""Checks of a data set's values."""

from __future__ import annotations

import math

import torch

from ...runtime.batches import named_tensors
from ..probes import Subject
from ..records import Finding, failed, passed, warned
from .source import Scan
from .stats import PartStats

__all__ = ["checks_of", "place"]

_GROUP = "data"
_FP32_SQUARE = 1e18
"""The square of a larger value overflows float32 (limit 3.4e38)."""
_UNSCALED = 1e6
_OUTLIER = 1000.0
_SHOWN = 6


def checks_of(scan: Scan, subject: Subject | None) -> list[Finding]:
    """Finite values, ranges, outliers, constant features, shapes, unreadable samples."""
    floats = [p for p in scan.parts.values() if p.is_float and p.num_samples]
    found = [*_unreadable(scan), *_empty(scan)]
    problems = [f for p in floats for f in _bad_values(p, scan, subject)]
    found += problems or _fine("data/finite", f"{_parts(floats)}: no NaN, no Inf", floats)
    ranges = [f for p in floats for f in _range(p, subject)]
    found += ranges or _fine("data/range", "; ".join(map(_span, floats[:4])), floats)
    outliers = [f for p in floats for f in _outliers(p)]
    found += outliers or _fine("data/outliers", "no value far outside of its feature", floats)
    constant = [f for p in floats for f in _constant(p)]
    found += constant or _fine("data/constant", "every feature varies", floats)
    found += _duplicates(scan)
    return found


def _fine(check: str, value: str, floats: list[PartStats]) -> list[Finding]:
    return [passed(_GROUP, check, value)] if floats else []


def place(p: PartStats, feature: int, sample: int) -> str:
    """Where a value stands: "sample[0], feature 3, sample 17"."""
    at = f", feature {feature}" if p.num_features > 1 else ""
    return f"{p.name}{at}, sample {sample}"


def _parts(floats: list[PartStats]) -> str:
    return ", ".join(p.name for p in floats[:4]) + (" …" if len(floats) > 4 else "")


def _span(p: PartStats) -> str:
    if p.low is None or p.high is None or not math.isfinite(float(p.low.min())):
        return f"{p.name}: nothing finite"
    return f"{p.name} from {float(p.low.min()):.3g} to {float(p.high.max()):.3g}"


def _unreadable(scan: Scan) -> list[Finding]:
    if not scan.errors:
        return []
    index, error = scan.errors[0]
    others = f" and {scan.num_errors - 1} more" if scan.num_errors > 1 else ""
    return [
        failed(
            _GROUP,
            "data/readable",
            f"raises {error}",
            "mend or leave out these samples",
            subject=f"sample {index}{others}",
            weight=9,
            data={"samples": [i for i, _ in scan.errors], "count": scan.num_errors},
        )
    ]


def _empty(scan: Scan) -> list[Finding]:
    found = []
    for p in scan.parts.values():
        hollow = [s for s in p.shapes if 0 in s]
        if hollow:
            index = p.shape_example[hollow[0]]
            count = sum(p.shapes[s] for s in hollow)
            found.append(
                warned(
                    _GROUP,
                    "data/empty",
                    f"{count} of {p.num_samples:,} have no element (shape {hollow[0]})",
                    "make sure that the loss is finite without them, or leave them out: a mean over nothing is NaN",
                    subject=f"{p.name}, sample {index}",
                    weight=7,
                    data={"sample": index, "count": count},
                )
            )
    return found


def _bad_values(p: PartStats, scan: Scan, subject: Subject | None) -> list[Finding]:
    if not p.num_bad_samples:
        return []
    first = p.bad[0]
    kinds = " and ".join(f"{n:,} {k}" for n, k in ((p.num_nan, "NaN"), (p.num_inf, "Inf")) if n)
    value = f"{kinds} in {p.num_bad_samples:,} of {p.num_samples:,} samples"
    samples = [b.index for b in p.bad]
    more = {"samples": samples, "feature": first.feature, "nan": p.num_nan, "inf": p.num_inf}
    where = place(p, first.feature, first.index)
    listed = ", ".join(map(str, samples[1:_SHOWN]))
    where += f" (also {listed}{' …' if len(samples) > _SHOWN else ''})" if listed else ""
    if subject is not None and not p.num_inf and _is_survived(subject):
        return [
            warned(
                _GROUP,
                "data/finite",
                f"{value}; the first steps met some and stayed finite",
                "make sure that missing values are masked everywhere, or fill them",
                subject=where,
                data=more,
                weight=6,
            )
        ]
    return [
        failed(
            _GROUP,
            "data/finite",
            value,
            "fill or leave out these samples before training",
            subject=where,
            data=more,
            weight=10,
        )
    ]


def _is_survived(subject: Subject) -> bool:
    """The batches of the first steps had a NaN, and loss and gradients did not."""
    had = any(
        t.is_floating_point() and bool(torch.isnan(t).any())
        for batch in subject.batches
        for _, t in named_tensors(batch)
    )
    figures = [v for s in subject.steps for v in (s.loss, s.grad_norm) if v is not None]
    return had and bool(figures) and all(math.isfinite(v) for v in figures)


def _range(p: PartStats, subject: Subject | None) -> list[Finding]:
    size = p.abs_max
    if p.high is None or p.low is None or p.high_at is None or not math.isfinite(size):
        return []
    feature = int(torch.maximum(p.high, -p.low).argmax())
    where = place(p, feature, int(p.high_at[feature]))
    is_half = subject is not None and subject.autocast_dtype == "float16"
    if size > _FP32_SQUARE:
        return [
            failed(
                _GROUP,
                "data/range",
                f"{size:.3g}: its square overflows float32",
                "mend or leave out this sample",
                subject=where,
                weight=9,
                data={"value": size},
            )
        ]
    if is_half and size > 65504:
        return [
            failed(
                _GROUP,
                "data/range",
                f"{size:.3g} overflows float16, in which this training computes",
                "normalize this input to about unit scale",
                subject=where,
                weight=8,
                data={"value": size, "sample": int(p.high_at[feature])},
            )
        ]
    if size > _UNSCALED:
        return [
            warned(
                _GROUP,
                "data/range",
                f"values up to {size:.3g}",
                "normalize this input to about unit scale (LeCun et al. 1998, Efficient BackProp)",
                subject=where,
                weight=5,
                data={"value": size},
            )
        ]
    if len(p.sample_shape) >= 3 and 128 < size <= 255 and float(p.low.min()) >= 0:
        return [
            warned(
                _GROUP,
                "data/range",
                f"from 0 to {size:g}: pixels that were not scaled",
                "divide by 255, then subtract the mean",
                subject=p.name,
                weight=4,
                data={"value": size},
            )
        ]
    return []


def _outliers(p: PartStats) -> list[Finding]:
    """A value a thousand times larger than nine in ten of its feature: a sentinel or a slip."""
    usual = p.typical_size()
    if usual is None or p.high is None or p.low is None or p.high_at is None:
        return []
    size = torch.maximum(p.high, -p.low)
    far = (size > _OUTLIER * usual) & (size > 100) & (usual > 0) & torch.isfinite(size)
    hits = torch.nonzero(far).flatten().tolist()
    if not hits or p.abs_max > _FP32_SQUARE:
        return []
    worst = max(hits, key=lambda i: float(size[i] / usual[i]))
    value = (
        float(p.high[worst])
        if float(p.high[worst]) >= -float(p.low[worst])
        else float(p.low[worst])
    )
    return [
        warned(
            _GROUP,
            "data/outliers",
            f"{value:g}, where nine in ten are below {float(usual[worst]):.3g}",
            "is it a code for a missing value? Fill or clip it",
            subject=place(p, worst, int(p.high_at[worst])),
            weight=6,
            data={"value": value, "features": hits[:64]},
        )
    ]


def _constant(p: PartStats) -> list[Finding]:
    same = p.constant_features()
    if not same or p.num_samples < 8 or p.low is None:
        return []
    share = len(same) / p.num_features
    is_padding = p.num_features >= 64 and share > 0.02 and all(float(p.low[i]) == 0 for i in same)
    if is_padding or _is_binary(p):
        return []  # borders of flattened images, words that never occur, events that are rare
    shown = ", ".join(map(str, same[:_SHOWN])) + (" …" if len(same) > _SHOWN else "")
    which = f", feature {shown}" if p.num_features > 1 else ""
    return [
        warned(
            _GROUP,
            "data/constant",
            f"{len(same)} of {p.num_features} features never vary "
            f"({float(p.low[same[0]]):g} everywhere)",
            "leave them out: dividing by their standard deviation gives NaN",
            subject=f"{p.name}{which}",
            weight=4,
            data={"features": same[:256]},
        )
    ]


def _is_binary(p: PartStats) -> bool:
    """Whether all features range from 0 to 1: flags."""
    if p.low is None or p.high is None:
        return False
    ends = torch.cat([p.low.flatten(), p.high.flatten()])
    is_known = bool(((ends == 0) | (ends == 1)).all())
    return is_known and bool((p.low == 0).any() and (p.high == 1).any())


def _duplicates(scan: Scan) -> list[Finding]:
    if scan.num_seen < 64 or scan.num_duplicates < 0.3 * scan.num_seen or not scan.first_duplicate:
        return []
    a, b = scan.first_duplicate
    return [
        warned(
            _GROUP,
            "data/duplicates",
            f"{scan.num_duplicates:,} of {scan.num_seen:,} samples are copies of earlier ones",
            "is the same file read again and again? Remove the copies",
            subject=f"sample {b} is sample {a}",
            weight=3,
            data={"count": scan.num_duplicates},
        )
    ]
