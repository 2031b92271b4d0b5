"""The severity of each scan finding; `codes/scan.py` says what the codes mean."""

from __future__ import annotations

from ..codes import all_codes

__all__ = ["SEVERITY", "VERDICTS"]

VERDICTS = ("healthy", "suspicious", "corrupt", "unreadable", "hostile")
"""From best to worst. The verdict of a file is that of its worst finding."""

SEVERITY: dict[str, str] = {code.name: code.detail("Verdict") for code in all_codes("scan")}
"""The verdict of a finding with this code."""
