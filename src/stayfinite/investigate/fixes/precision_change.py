"""A fix that moves the whole training to a precision with a larger range."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ...diagnose.evidence import Evidence
from ...remedies import Candidate, apply, in_precision
from .. import changes
from ..evidence.script_files import own_files
from ..laboratory import Laboratory
from .setting_change import SettingChange
from .where_set import source_of

__all__ = ["precision_changes"]


def precision_changes(lab: Laboratory, e: Evidence) -> Iterator[SettingChange]:
    """float32 if the weights are half, bfloat16 for autocast; if one file of the training requests float16."""
    files = {*own_files(lab.investigation), *([e.location.file] if e.location.file else [])}
    sources = [(f, s) for f in sorted(files) if (s := source_of(f))]
    asking = [(f, s) for f, s in sources if in_precision(s, "bfloat16") is not None]
    if len(asking) != 1 or e.dtype != "float16":
        return
    file, source = asking[0]
    # Weights in bfloat16 have 8 bits, so small updates are lost.
    has_half = any(p.dtype == torch.float16 for _, p in lab.state.parameters())
    kinds = [("float32", torch.float32)] if has_half else [("bfloat16", torch.bfloat16)]
    for name, dtype in kinds:
        remedy = in_precision(source, name)
        if remedy is None:
            continue
        after, done = apply(source.text, [remedy])
        yield SettingChange(
            file, source.text, after, Candidate(done, after),
            partial(changes.higher_precision, lab.state, dtype),
        )  # fmt: skip
