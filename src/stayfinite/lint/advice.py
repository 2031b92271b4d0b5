"""One line of advice for each code."""

from __future__ import annotations

from ..codes import all_codes

__all__ = ["ADVICE"]

ADVICE = {code.name: code.detail("Write instead") for code in all_codes("lint")}
