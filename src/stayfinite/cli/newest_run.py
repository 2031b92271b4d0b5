"""The newest run below `stayfinite-runs`, for a command that is given no run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import UsageError

__all__ = ["HOME", "has_run", "newest_run", "with_incidents", "with_journal"]

HOME = Path("stayfinite-runs")


def with_incidents(run: Path) -> bool:
    return (run / "incidents").is_dir()


def with_journal(run: Path) -> bool:
    return any(run.glob("journal*.jsonl"))


def has_run(is_wanted: Callable[[Path], bool]) -> bool:
    return HOME.is_dir() and any(map(is_wanted, HOME.iterdir()))


def newest_run(is_wanted: Callable[[Path], bool]) -> Path:
    """The most recently written run that the command can use."""
    runs = [p for p in HOME.iterdir() if is_wanted(p)] if HOME.is_dir() else []
    if not runs:
        raise UsageError(
            f"no run is named, and there is none in {HOME}/\n  try: stayfinite run train.py"
        )
    return max(runs, key=lambda p: p.stat().st_mtime)
