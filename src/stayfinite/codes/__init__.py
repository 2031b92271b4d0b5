"""The one source of what every code means: causes, and the findings of lint, scan and check.

What `stayfinite explain CODE` prints and what the page of the code in the documentation says are both
made from here (`explain/`).
"""

from __future__ import annotations

from . import causes, checks_setup, checks_training, lint, scan
from .registry import KINDS, Code, Kind, all_codes, lookup, nearest, register

__all__ = [
    "CAUSES",
    "KINDS",
    "Code",
    "Kind",
    "all_codes",
    "causes",
    "checks_setup",
    "checks_training",
    "lint",
    "lookup",
    "nearest",
    "register",
    "scan",
]

CAUSES: tuple[str, ...] = tuple(code.name for code in all_codes("cause"))
