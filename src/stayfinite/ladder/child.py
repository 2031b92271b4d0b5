"""The process that runs the script once."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["main"]


def main(path: str) -> int:
    """Run the script as the spec describes."""
    spec = json.loads(Path(path).read_text(encoding="utf-8"))
    if spec["mode"] == "survey":
        from .survey import run_survey

        return run_survey(spec)
    from .rung import run_rung

    return run_rung(spec)
