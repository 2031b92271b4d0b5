"""Checks of how samples become batches."""

from __future__ import annotations

from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, SequentialSampler
from torch.utils.data.dataloader import default_collate

from ..probes import Subject
from ..records import Finding, failed, passed, warned
from .labels import label_part
from .source import Scan
from .stats import PartStats

__all__ = ["loader_checks"]

_GROUP = "data"


def loader_checks(scan: Scan, loader: Any, subject: Subject) -> list[Finding]:
    """Shapes that do not stack, a last batch of one sample, unshuffled order, float64 samples."""
    if not isinstance(loader, DataLoader):
        return []
    found = [*_ragged(scan, loader), *_last_batch(loader, subject), *_order(scan, loader, subject)]
    return found + _doubles(scan, subject)


def _ragged(scan: Scan, loader: DataLoader[Any]) -> list[Finding]:
    if loader.collate_fn is not default_collate or not scan.by_sample:
        return []
    found = [_ragged_part(p) for p in scan.parts.values() if len(p.shapes) > 1]
    return found or [passed(_GROUP, "data/shapes", _shapes(scan))]


def _shapes(scan: Scan) -> str:
    return ", ".join(f"{p.name} {p.sample_shape}" for p in list(scan.parts.values())[:4])


def _ragged_part(p: PartStats) -> Finding:
    usual = p.sample_shape
    odd = min((s for s in p.shapes if s != usual), key=lambda s: p.shapes[s])
    index = p.shape_example[odd]
    return failed(
        _GROUP,
        "data/shapes",
        f"shape {odd} where {p.shapes[usual]:,} samples have {usual}",
        "give the DataLoader a collate_fn that pads, or leave the sample out",
        subject=f"{p.name}, sample {index}",
        weight=8,
        data={"sample": index, "shape": list(odd)},
    )


def _last_batch(loader: DataLoader[Any], subject: Subject) -> list[Finding]:
    """A last batch of one sample, and a layer that takes a variance over the batch."""
    size = loader.batch_size
    if size is None or size < 2 or loader.drop_last:
        return []
    try:
        total = len(loader.sampler)  # type: ignore[arg-type]
    except TypeError:
        return []
    norm = next((n for n, m in subject.modules() if isinstance(m, _BatchNorm) and m.training), None)
    if norm is None or total % size != 1:
        return []
    return [
        failed(
            _GROUP,
            "data/last-batch",
            f"{total:,} samples in batches of {size} leave a last batch of 1",
            "DataLoader(…, drop_last=True)",
            subject=norm,
            weight=7,
            why="batch norm has no variance of one value: it raises, or trains on zeros",
        )
    ]


def _order(scan: Scan, loader: DataLoader[Any], subject: Subject) -> list[Finding]:
    if not isinstance(loader.sampler, SequentialSampler) or not scan.by_sample:
        return []
    p = label_part(scan, subject)
    if p is None or not p.is_sorted or p.sample_shape not in ((), (1,)):
        return []
    size = loader.batch_size or 1
    if not 1 < len(p.classes) <= p.num_samples // 4 or p.num_samples <= 2 * size:
        return []
    return [
        warned(
            _GROUP,
            "data/order",
            "the labels come sorted, and nobody shuffles",
            "DataLoader(…, shuffle=True)",
            subject=p.name,
            weight=6,
            why="every batch has one class only",
        )
    ]


def _doubles(scan: Scan, subject: Subject) -> list[Finding]:
    """float64 samples in a float32 model: torch refuses, or computes everything twice as slowly."""
    dtypes = {str(p.dtype) for _, p in subject.parameters()}
    if dtypes != {"torch.float32"} or subject.steps:
        return []
    doubles = [p.name for p in scan.parts.values() if p.dtype == "float64"]
    if not doubles:
        return []
    return [
        warned(
            _GROUP,
            "data/dtype",
            "float64, while the model is float32",
            "convert it in the dataset: torch.as_tensor(x, dtype=torch.float32)",
            subject=doubles[0],
            weight=7,
        )
    ]
