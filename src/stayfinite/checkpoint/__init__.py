"""The checkpoint doctor: is this file sound, which one is the last good one, what would a resume do.

    from stayfinite.checkpoint import scan, scan_file
    report = scan(["runs/exp1"])
    report.verdict, report.last_good

The contents of a file are never executed; docs/SCAN.md explains how.
"""

from __future__ import annotations

from .diff import diff
from .limits import Limits
from .one_file import scan_file, scan_object
from .quarantine import move, plan_quarantine, undo
from .rates import compare, read_config_rate
from .readers import Contents, Reader, register_reader, unregister_reader
from .records import (
    CheckpointReport,
    DiffReport,
    FileReport,
    LayerDiff,
    LearningRates,
    RunTimeline,
    ScanReport,
    TensorDiff,
    TensorFinding,
    TensorReport,
    TimelineEntry,
)
from .scanner import Progress, scan

__all__ = [
    "CheckpointReport",
    "Contents",
    "DiffReport",
    "FileReport",
    "LayerDiff",
    "LearningRates",
    "Limits",
    "Progress",
    "Reader",
    "RunTimeline",
    "ScanReport",
    "TensorDiff",
    "TensorFinding",
    "TensorReport",
    "TimelineEntry",
    "compare",
    "diff",
    "move",
    "plan_quarantine",
    "read_config_rate",
    "register_reader",
    "scan",
    "scan_file",
    "scan_object",
    "undo",
    "unregister_reader",
]
