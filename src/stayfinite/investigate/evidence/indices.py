"""Describes the index of the first bad value (sample, feature, token, …) if the shape is clear."""

from __future__ import annotations

from collections.abc import Sequence

from ...records import Link, Location

__all__ = ["first_bad"]

_PICTURES = ("Conv2d", "BatchNorm2d", "MaxPool2d", "AvgPool2d", "ConvTranspose2d", "Upsample")
_SCORES = ("_softmax", "_log_softmax", "masked_fill", "bmm", "matmul", "div", "mul", "add")


def first_bad(location: Location, rows: int | None, known: Sequence[int]) -> str:
    """ "sample 3, head 1, query 0, key 0"; the plain index if the meaning is unknown; "" if there is none.

    `rows`: the number of samples in a batch, if known; `known`: their positions in the data set, if known.
    """
    link = next((c for c in location.chain if c.role in ("birth", "source")), None)
    if link is None or not link.outputs or link.direction == "backward":
        return ""
    stats = next((o.stats for o in link.outputs if o.stats and o.stats.first_bad is not None), None)
    if stats is None or not stats.shape or not stats.first_bad:
        return ""
    names = _names(link, stats.shape, rows)
    if names is None:
        return f"index [{', '.join(map(str, stats.first_bad))}]"
    where, *rest = (f"{n} {i}" for n, i in zip(names, stats.first_bad))
    row = stats.first_bad[0]
    if len(known) == rows:
        where = f"sample {known[row]} of the data set"
    return ", ".join((where, *rest))


def _names(link: Link, shape: tuple[int, ...], rows: int | None) -> list[str] | None:
    if rows is None or rows < 2 or shape[0] != rows:
        return None
    op = (
        (link.op or "").split(".")[-1].rstrip("_")
        if not (link.op or "").endswith("._softmax")
        else "_softmax"
    )
    if len(shape) == 1:
        return ["sample"]
    if len(shape) == 2:
        return ["sample", "feature"]
    if len(shape) == 4 and (link.module_type or "") in _PICTURES:
        return ["sample", "channel", "row", "column"]
    if len(shape) == 4 and shape[-1] == shape[-2] and op in _SCORES:
        return ["sample", "head", "query", "key"]
    if len(shape) == 3 and shape[-1] == shape[-2] and op in _SCORES:
        return ["sample", "query", "key"]
    if len(shape) == 3:
        return ["sample", "time", "feature"]
    return None
