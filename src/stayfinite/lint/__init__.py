"""Finds numerically unsafe source without running it or importing torch.

>>> from stayfinite import lint
>>> [f.code for f in lint.check_source("import torch\\nloss = -torch.log(torch.sigmoid(score)).mean()\\n")]
['SF101']
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from .check import check_source
from .files import collect, lint_paths
from .records import Finding, Report, Unreadable
from .settings import Settings, read_settings

__all__ = [
    "Finding",
    "Report",
    "Settings",
    "Unreadable",
    "check_source",
    "codes_at",
    "collect",
    "lint_paths",
    "read_settings",
    "sentence_at",
]

_LARGEST = 2_000_000


def codes_at(path: str | os.PathLike[str], line: int) -> tuple[Finding, ...]:
    """The findings of lint for one line of a file; none if that file cannot be read.

    For an incident or a check that knows a line. It never raises, caches a file until it changes, and returns the findings of the
    default tier first.
    """
    try:
        name = os.fspath(path)
        state = os.stat(name)
        if not name.endswith(".py") or state.st_size > _LARGEST:
            return ()
        found = _findings(name, state.st_mtime_ns, state.st_size)
    except Exception:
        return ()
    at = [f for f in found if f.line <= line <= f.end_line]
    return tuple(sorted(at, key=lambda f: (not f.is_default, f.line, f.column)))


def sentence_at(path: str | os.PathLike[str] | None, line: int | None) -> str:
    """A sentence for an incident or a check about the failing line; "" without a finding.

    >>> sentence_at("train.py", None)
    ''
    """
    found = codes_at(path, line) if path is not None and line is not None else ()
    shown = [f for f in found if f.is_default] or found
    codes = " and ".join(dict.fromkeys(f.code for f in shown))
    asked = "" if not shown or shown[0].is_default else " (with --pedantic)"
    return f"lint: {codes} would have shown this line{asked}" if codes else ""


@lru_cache(maxsize=32)
def _findings(path: str, modified: int, size: int) -> tuple[Finding, ...]:
    text = Path(path).read_text(encoding="utf-8")
    return tuple(check_source(text, path, Settings(pedantic=True)))
