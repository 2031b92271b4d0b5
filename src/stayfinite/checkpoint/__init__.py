"""The checkpoint doctor: is this file sound, which is the last good one, what will a resume train with.

    from stayfinite.checkpoint import scan, scan_file

    report = scan(["runs/exp1"])
    report.verdict, report.last_good

Nothing that a file contains is ever executed; docs/SCAN.md says how.
"""

from __future__ import annotations

from . import codes as _codes
from .limits import Limits
from .one_file import scan_file, scan_object
from .readers import Contents, Reader, register_reader, unregister_reader
from .records import FileReport

__all__ = [
    "Contents",
    "FileReport",
    "Limits",
    "Reader",
    "register_reader",
    "scan_file",
    "scan_object",
    "unregister_reader",
]
