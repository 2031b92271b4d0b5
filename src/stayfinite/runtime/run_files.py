"""The files of a run folder: one journal for all ranks, the rest per rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..recover.ledger import LEDGER_NAME, Ledger
from ..report.journal import Listener
from .engine import Engine
from .journal import RunJournal

__all__ = ["keep_files"]


def keep_files(
    engine: Engine,
    folder: Path,
    number: int,
    about: Callable[[], dict[str, Any]],
    sinks: Callable[[], Sequence[Listener]] = tuple,
) -> None:
    """Set up the files of the engine; `number`: the index of this process, of which the first keeps the journal."""
    own = f".rank{number}." if number else "."
    engine.snapshot_folder = folder / "snapshots"
    if number:
        engine.snapshot_folder /= f"rank{number}"
    engine.recovery.left_out.ledger = Ledger(folder / LEDGER_NAME.replace(".", own))
    engine.recovery.folder = folder if number == 0 else folder / f"rank{number}"
    engine.ranks.summary.folder = folder
    if number == 0:
        engine.journal = RunJournal(folder, engine.state, about(), sinks())
