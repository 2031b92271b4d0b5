"""A fix that drops bad rows where the batch enters the user's source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

from ...diagnose.evidence import BatchPart, Evidence
from ...locate.frames import is_user_file
from ...remedies import (
    Candidate,
    Source,
    apply,
    taken_rows,
    with_filled_values,
    without_bad_rows,
    without_bad_rows_of,
)
from ...runtime.batches import named_tensors
from ...runtime.rows import num_rows
from ..laboratory import Laboratory
from ..replays.changed_source import text_of_file

__all__ = ["RowsChange", "rows_change"]

_ABSURD = 1e6
_PART = re.compile(r"\[(?:'([^']*)'|(\d+))\]$")


@dataclass(frozen=True)
class RowsChange:
    """A file and its change."""

    file: str
    before: str
    candidate: Candidate


def rows_change(lab: Laboratory, e: Evidence) -> RowsChange | None:
    """The change that drops the bad rows of such a batch."""
    if lab.window.is_loaderless:
        return _indexed_rows(lab, e)
    if len(lab.window.batches) != 1:
        return None
    value = lab.window.batches[0].value
    home = _home(lab)
    total = num_rows(value)
    if home is None or total is None:
        return None
    file, line, batch, model = home
    text = text_of_file(file)
    bad, limit = _bad_parts(e, total)
    if text is None or not bad:
        return None
    source = Source(text)
    parts = len(value) if isinstance(value, (list, tuple)) else 0
    others = [k for p in _row_parts(e, total) if (k := _key(p)) not in bad]
    if limit is None and not _has_good_row(value, total):
        made = with_filled_values(source, line, batch, bad, parts)
    else:
        made = without_bad_rows(source, line, batch, bad, parts, limit, others, model)
    if made is None:
        return None
    changed, done = apply(text, [made])
    return RowsChange(file, text, Candidate(done, changed))


def _has_good_row(value: Any, total: int) -> bool:
    """Whether any rows are left without the bad ones."""
    tensors = [t for _, t in named_tensors(value) if t.ndim and len(t) == total and _is_float(t)]
    good = [t.detach().isfinite().reshape(total, -1).all(1) for t in tensors if total]
    return not good or bool(torch.stack(good).all(0).any())


def _indexed_rows(lab: Laboratory, e: Evidence) -> RowsChange | None:
    """For a loop that indexes its data (`x, y = data[i], labels[i]`): keep only the good rows after that."""
    scene, place = lab.investigation.vehicle.scene, e.location
    if scene is None or place.line is None or place.file != scene.file:
        return None
    text = text_of_file(scene.file)
    source = Source(text) if text is not None and is_user_file(scene.file) else None
    names = taken_rows(source, place.line) if source is not None else None
    if source is None or names is None:
        return None
    parts = [scene.variables.get(n) for n in names]
    rows = {len(p) for p in parts if isinstance(p, Tensor) and p.ndim}
    bad = [i for i, p in enumerate(parts) if isinstance(p, Tensor) and not p.isfinite().all()]
    if len(rows) != 1 or not bad or not all(isinstance(p, Tensor) for p in parts):
        return None
    others = [i for i, p in enumerate(parts) if i not in bad and _is_float(p)]
    made = without_bad_rows_of(source, place.line, names, bad, others)
    if made is None:
        return None
    changed, done = apply(source.text, [made])
    return RowsChange(scene.file, source.text, Candidate(done, changed))


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _bad_parts(e: Evidence, total: int) -> tuple[list[str | int], str | None]:
    """Keys or positions of the parts with bad rows; and a limit, if they are finite but absurd."""
    rows = _row_parts(e, total)
    broken = [p for p in rows if p.stats.num_nonfinite]
    if broken:
        return [_key(p) for p in broken], None
    large = [p for p in rows if _is_absurd(p)]
    if not large:
        return [], None
    usual = max(p.usual or p.usual_here or 1.0 for p in large)
    return [_key(p) for p in large], f"{1000 * max(usual, 1.0):.1g}"


def _row_parts(e: Evidence, total: int) -> list[BatchPart]:
    """The parts of a batch that have a row per sample and can contain a NaN."""
    return [p for p in e.batch if p.stats.shape[:1] == (total,) and "float" in p.stats.dtype]


def _is_absurd(part: BatchPart) -> bool:
    usual = min((v for v in (part.usual, part.usual_here) if v is not None), default=None)
    peak = part.stats.abs_max
    return usual is not None and peak is not None and peak > _ABSURD * max(usual, 1e-6)


def _key(part: BatchPart) -> str | int:
    found = _PART.search(part.name)
    if found is None:
        return 0
    return found.group(1) if found.group(1) is not None else int(found.group(2))


def _home(lab: Laboratory) -> tuple[str, int, str | None, str | None] | None:
    """File, line, and the names of batch and model in the function that receives the batch, or the loop that draws it."""
    function: Any = lab.window.batches[0].loss_fn
    if function is not None:
        function = getattr(function, "__func__", function)
        if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
            return None
        code: CodeType = function.__code__
        if not is_user_file(code.co_filename) or code.co_argcount < 2:
            return None
        line = code.co_firstlineno + 1
        names = code.co_varnames[: code.co_argcount]
        return code.co_filename, line, names[-1], names[0] if names[0] != "self" else None
    scene = lab.investigation.vehicle.scene
    if scene is None or not is_user_file(scene.file):
        return None
    return scene.file, scene.line, None, None
