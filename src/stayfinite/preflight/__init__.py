"""`stayfinite check`: know before the GPU hours."""

from __future__ import annotations

from .records import CheckReport, Finding

__all__ = ["CheckReport", "Finding"]
