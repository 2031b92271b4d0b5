"""Checks of labels and word ids."""

from __future__ import annotations

import math
import re

from torch import nn

from ...runtime.batches import named_tensors
from ..probes import Seen, Subject
from ..records import Finding, failed, passed, warned
from .source import Scan
from .stats import PartStats

__all__ = ["label_checks", "label_part"]

_GROUP = "data"
_IGNORED = (-100, -1)
"""Labels that losses ignore; torch's default is -100."""
_NAMES = re.compile(r"label|target|\by\b|class", re.I)
_RARE = 0.95


def label_checks(scan: Scan, subject: Subject | None, seen: Seen | None) -> list[Finding]:
    """The range of labels and word numbers, and the balance of classes."""
    whole = _whole(scan)
    label = label_part(scan, subject)
    found: list[Finding] = []
    if label is not None:
        num_classes = _num_classes(label, subject, seen)
        if num_classes is not None and _highest_met(label, subject) >= num_classes:
            num_classes = None  # the loss has taken it: it leaves it out, or counts something else
        problems = _label_range(label, num_classes)
        of = f" of {num_classes}" if num_classes else ""
        span = f"{label.name} from {label.low_int} to {label.high_int}{of}"
        found += problems or [passed(_GROUP, "data/labels", span)]
        found += _balance(label, num_classes)
    found += _words([p for p in whole if p is not label], subject)
    found += _float_labels(scan, subject)
    return found


def _whole(scan: Scan) -> list[PartStats]:
    return [p for p in scan.parts.values() if not p.is_float and p.low_int is not None]


def label_part(scan: Scan, subject: Subject | None) -> PartStats | None:
    """The part that says the class: by its name, or the last whole number of a sample."""
    whole = _whole(scan)
    named = [p for p in whole if _NAMES.search(p.name)]
    if named:
        return named[0]
    names = list(scan.parts)
    is_nll = subject is not None and any("NllLoss" in op for op in subject.loss_ops)
    last = [p for p in whole if p.name == names[-1]] if len(names) > 1 else []
    if last and (last[0].sample_shape in ((), (1,)) or is_nll):
        return last[0]
    return None


def _num_classes(label: PartStats, subject: Subject | None, seen: Seen | None) -> int | None:
    """What the model gives for each class, where the loss is a cross entropy."""
    if subject is None or seen is None:
        return None
    ops = subject.loss_ops or seen.loss_ops
    if ops and not any("NllLoss" in op for op in ops):
        return None
    if seen.error is not None and not seen.layers:
        return _last_width(subject)
    roots = [s for s in seen.layers if s.module in subject.models]
    if len(roots) != 1 or len(roots[0].shape) < 2:
        return None
    shape = roots[0].shape
    is_dense = len(shape) >= 3 and len(label.sample_shape) == len(shape) - 2
    if is_dense and label.sample_shape == tuple(shape[2:]):
        return shape[1]  # (batch, class, places …), as for images
    return shape[-1]


def _highest_met(label: PartStats, subject: Subject | None) -> float:
    """The highest label among those that the first real steps have taken."""
    if subject is None:
        return -math.inf
    name = label.name.replace("sample", "batch", 1)
    taken = subject.batches[: sum(s.num_batches for s in subject.steps)]
    met = [t for batch in taken for n, t in named_tensors(batch) if n == name and t.numel()]
    return max((float(t.max()) for t in met), default=-math.inf)


def _last_width(subject: Subject) -> int | None:
    """If no step succeeds: the width of the model's last layer."""
    widths = [m.out_features for _, m in subject.modules() if isinstance(m, nn.Linear)]
    return widths[-1] if widths and len(subject.models) == 1 else None


def _label_range(p: PartStats, num_classes: int | None) -> list[Finding]:
    found = []
    if p.low_int is not None and p.low_int < 0 and p.low_int not in _IGNORED:
        found.append(
            failed(
                _GROUP,
                "data/labels",
                f"label {p.low_int}",
                "labels count from 0; -100 is for what the loss leaves out",
                subject=f"{p.name}, sample {p.low_at}",
                weight=9,
                data={"sample": p.low_at, "label": p.low_int},
            )
        )
    if num_classes is not None and p.high_int is not None and p.high_int >= num_classes:
        found.append(
            failed(
                _GROUP,
                "data/labels",
                f"label {p.high_int}, but the model gives {num_classes} classes "
                f"(0 to {num_classes - 1})",
                f"let the labels count from 0, or give the model {p.high_int + 1} outputs",
                subject=f"{p.name}, sample {p.high_int_at}",
                weight=9,
                data={"sample": p.high_int_at, "label": p.high_int, "classes": num_classes},
            )
        )
    return found


def _balance(p: PartStats, num_classes: int | None) -> list[Finding]:
    counts = {k: v for k, v in p.classes.items() if k >= 0}
    total = sum(counts.values())
    if not counts or total < 32 or not p.has_all_classes:
        return []
    often, most = max(counts.items(), key=lambda kv: kv[1])
    rare, least = min(counts.items(), key=lambda kv: kv[1])
    if len(counts) == 1:
        return [
            warned(
                _GROUP,
                "data/balance",
                f"all {total:,} labels are {often}",
                "is this the right column? A constant answer is right every time",
                subject=p.name,
                weight=6,
            )
        ]
    if most > _RARE * total and total >= 200:
        return [
            warned(
                _GROUP,
                "data/balance",
                f"class {often} is {100 * most / total:.1f} % of {total:,} labels",
                "weight the loss by class, or sample the others more often",
                subject=f"{p.name}, class {often}",
                weight=4,
                data={"class": often, "share": most / total},
            )
        ]
    missing = _missing(counts, total, num_classes)
    if missing:
        shown = ", ".join(map(str, missing[:6])) + (" …" if len(missing) > 6 else "")
        return [
            warned(
                _GROUP,
                "data/balance",
                f"no sample of class {shown} among {total:,}",
                "give the model fewer outputs, or find the samples that are missing",
                subject=f"{p.name}, class {missing[0]}",
                weight=2,
                data={"classes": missing[:256]},
            )
        ]
    said = f"{len(counts)} classes, from {least:,} (class {rare}) to {most:,} (class {often})"
    if least == most:
        said = f"{len(counts)} classes with {most:,} samples each"
    return [passed(_GROUP, "data/balance", said)]


def _missing(counts: dict[int, int], total: int, num_classes: int | None) -> list[int]:
    """Classes that do not occur although there were samples enough for all of them."""
    if num_classes is None or num_classes > 1000 or total < 50 * num_classes:
        return []
    return [c for c in range(num_classes) if c not in counts]


def _words(parts: list[PartStats], subject: Subject | None) -> list[Finding]:
    """Compare word ids with the sizes of their embedding tables."""
    if subject is None:
        return []
    tables = {
        path: m.num_embeddings
        for path, m in subject.modules()
        if isinstance(m, (nn.Embedding, nn.EmbeddingBag))
    }
    if not tables:
        return []
    path, size = max(tables.items(), key=lambda kv: kv[1])
    found = []
    for p in parts:
        if p.high_int is None or p.low_int is None:
            continue
        is_low = p.low_int < 0 and p.low_int not in _IGNORED
        if p.high_int >= size or is_low:
            value, sample = (p.low_int, p.low_at) if is_low else (p.high_int, p.high_int_at)
            found.append(
                failed(
                    _GROUP,
                    "data/ids",
                    f"{value}, but the largest table ({path}) has rows 0 to {size - 1}",
                    f"give {path} {p.high_int + 1} rows, or map unknown words to one number",
                    subject=f"{p.name}, sample {sample}",
                    weight=9,
                    data={"sample": sample, "value": value, "table": path},
                )
            )
    return found


def _float_labels(scan: Scan, subject: Subject | None) -> list[Finding]:
    """A binary cross entropy takes targets from 0 to 1; with logits it does not even complain."""
    ops = subject.loss_ops if subject is not None else ()
    if not any("BinaryCrossEntropy" in op for op in ops[:8]):
        return []
    target = _binary_target(list(scan.parts.values()))
    if target is None or target.low is None or target.high is None or target.high_at is None:
        return []
    low, high = float(target.low.min()), float(target.high.max())
    if low >= 0 and high <= 1:
        return []
    feature = int(target.high.argmax()) if high > 1 else int(target.low.argmin())
    return [
        failed(
            _GROUP,
            "data/labels",
            f"targets of a binary cross entropy from {low:g} to {high:g}",
            "let the targets be from 0 to 1: outside of it the loss has no lower bound",
            subject=f"{target.name}, sample {int(target.high_at[feature])}",
            weight=9,
            data={"low": low, "high": high},
        )
    ]


def _binary_target(parts: list[PartStats]) -> PartStats | None:
    """What is named so, or else the last one; None where a named one holds whole numbers or another one would fit."""
    named = [p for p in parts if _NAMES.search(p.name)]
    floats = [p for p in parts if p.is_float and p.low is not None and p.high is not None]
    if named:
        return next((p for p in floats if p in named), None)
    if len(parts) < 2 or not parts[-1].is_float:
        return None
    others = [p for p in floats[:-1] if p is not parts[0] and _is_share(p)]
    return parts[-1] if not others else None


def _is_share(p: PartStats) -> bool:
    return (
        p.low is not None
        and p.high is not None
        and bool((p.low >= 0).all())
        and bool((p.high <= 1).all())
    )
