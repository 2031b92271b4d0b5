"""Compares two tensors in two files block by block, without loading either."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .contents import NamedTensor, named_tensors
from .files import Blob
from .folders import dcp_files
from .geometry import Layout
from .limits import FileFault, LimitError, Limits
from .measure import Elements, typed_blocks
from .one_file import open_contents
from .places import open_source, place
from .readers.dcp import read_items
from .records import CheckpointReport
from .roles import file_hint
from .tree import weight_name

__all__ = ["Change", "OverlapError", "change_between", "norm_of", "open_tensors"]

_BLOCK = 1 << 21


class OverlapError(LimitError):
    """Views of one storage overlap so much that reading each would take for ever."""


@contextlib.contextmanager
def open_tensors(checkpoint: CheckpointReport, limits: Limits) -> Iterator[dict[str, NamedTensor]]:
    """The tensors of a checkpoint by name, as long as the `with` lasts; may raise `OverlapError`."""
    with contextlib.ExitStack() as stack:
        found: dict[str, NamedTensor] = {}
        indexes = [f.path for f in checkpoint.files if f.format == "dcp metadata"]
        folders = {place(p.removesuffix("/.metadata")) for p in indexes}
        pieces = {p: i for folder in folders for p, i in dcp_files(folder, limits)[1].items()}
        for report in checkpoint.files:
            path = place(report.path)
            if report.format in ("unknown", "dcp metadata"):
                continue
            try:
                file = stack.enter_context(open_source(path))
                is_dcp = path in pieces
                contents = (
                    read_items(file, pieces[path], limits.begin())
                    if is_dcp
                    else open_contents(file, limits.begin())
                )
                hint = contents.hint or file_hint(path.name.partition(".")[0])
                spent: dict[Blob, int] = {}
                for tensor in named_tensors(contents, hint, limits):
                    _spend(tensor, spent, limits)
                    found.setdefault(_qualified(tensor, hint), tensor)
            except OverlapError:
                raise
            except (FileFault, OSError):
                continue  # the scan has a finding for it
        yield found


def _spend(tensor: NamedTensor, spent: dict[Blob, int], limits: Limits) -> None:
    """A few bytes of pickle for each view must not make us read a storage a million times."""
    blob, layout, elements = tensor.blob, tensor.layout, tensor.elements
    assert blob is not None and layout is not None and elements is not None
    spent[blob] = spent.get(blob, 0) + layout.num_elements * elements.itemsize
    if spent[blob] > (limits.max_rereads + 1) * blob.size + (1 << 20):
        raise OverlapError("too many overlapping views of one storage: they are not compared")


def _qualified(tensor: NamedTensor, hint: str) -> str:
    name = weight_name(tensor.path)
    return (
        f"{hint}.{name}" if hint and hint not in ("data",) and not name.startswith(hint) else name
    )


@dataclass(frozen=True)
class Change:
    """How far one tensor moved."""

    relative: float | None
    """Norm of the difference over the norm before; None when a value is not finite."""
    max_abs: float | None
    num_changed: int
    num_nonfinite_a: int
    num_nonfinite_b: int
    norm_a: float | None = None
    norm_b: float | None = None
    norm_change: float | None = None
    """Norms before, after, and of the difference; None when a value is not finite."""


def _row_major(tensor: NamedTensor) -> Iterator[Tensor]:
    """The elements in the order of their indices, whatever the strides, as flat blocks."""
    assert tensor.blob is not None and tensor.layout is not None and tensor.elements is not None
    layout, elements = tensor.layout, tensor.elements
    if 0 in layout.size:
        return
    strides = []
    step = 1
    for n in reversed(layout.size):
        strides.append(step)
        step *= n
    row_major = tuple(reversed(strides))
    is_plain = all(n == 1 or s == r for n, s, r in zip(layout.size, layout.stride, row_major))
    plan = Layout(layout.offset, layout.size, layout.stride, _in_order(layout, is_plain))
    for _, flat in typed_blocks(tensor.blob, plan, elements, _BLOCK):
        yield _widened(flat, elements)


def _in_order(layout: Layout, is_plain: bool) -> tuple[tuple[int, int], ...]:
    if is_plain:
        return ((math.prod(layout.size), 1),)
    return tuple(zip(layout.size, layout.stride)) or ((1, 1),)


def _widened(flat: Tensor, elements: Elements) -> Tensor:
    if elements.stored is torch.float64 or not elements.is_float:
        return flat.to(torch.float64)
    return flat.to(torch.float32)


def norm_of(tensor: NamedTensor) -> float:
    """The Euclidean norm; NaN or Inf when the tensor holds one."""
    total = 0.0
    for flat in _row_major(tensor):
        total += float(torch.linalg.vector_norm(flat).item()) ** 2
    return math.sqrt(total) if total == total and total != math.inf else total


def change_between(a: NamedTensor, b: NamedTensor) -> Change:
    """What happened to a tensor between two checkpoints of the same shape."""
    before = moved = after = 0.0
    largest, changed, bad_a, bad_b = 0.0, 0, 0, 0
    for x, y in zip(_equal_blocks(a), _equal_blocks(b)):
        wide = torch.promote_types(x.dtype, y.dtype)
        x, y = x.to(wide), y.to(wide)
        bad_a += x.numel() - int(torch.isfinite(x).sum())
        bad_b += y.numel() - int(torch.isfinite(y).sum())
        delta = y - x
        changed += int(((delta != 0) & ~(torch.isnan(x) & torch.isnan(y))).sum())
        largest = max(largest, float(torch.linalg.vector_norm(delta, ord=math.inf).item()))
        moved += float(torch.linalg.vector_norm(delta).item()) ** 2
        before += float(torch.linalg.vector_norm(x).item()) ** 2
        after += float(torch.linalg.vector_norm(y).item()) ** 2
    if bad_a or bad_b:
        return Change(None, None, changed, bad_a, bad_b)
    base = math.sqrt(before) or math.sqrt(after)
    relative = math.sqrt(moved) / base if base else 0.0
    norms = math.sqrt(before), math.sqrt(after), math.sqrt(moved)
    return Change(relative, largest, changed, 0, 0, *norms)


def _equal_blocks(tensor: NamedTensor) -> Iterator[Tensor]:
    """Blocks of one fixed length, so that two tensors of different strides line up."""
    waiting: list[Tensor] = []
    count = 0
    for flat in _row_major(tensor):
        for piece in torch.split(flat, _BLOCK):
            waiting.append(piece)
            count += piece.numel()
            while count >= _BLOCK:
                joined = torch.cat(waiting) if len(waiting) > 1 else waiting[0]
                yield joined[:_BLOCK]
                waiting = [joined[_BLOCK:]] if joined.numel() > _BLOCK else []
                count -= _BLOCK
    if count:
        yield torch.cat(waiting) if len(waiting) > 1 else waiting[0]
