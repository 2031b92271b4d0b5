"""Writes each rank's summary into the run folder for the report."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

from ...private import make_folder, open_private

__all__ = ["RankSummary"]


class RankSummary:
    """Counts the steps that this rank made with the others, and how long it waited for them.

    Where the ranks agree on a step, the one that comes last waits least: that is the one the others wait for.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        """The run folder; None where there is none, and nothing is written."""
        self.num_steps = 0
        self.waited = 0.0
        self._first = self._last = 0.0
        self._num_unasked = 0

    def pass_by(self) -> None:
        """A step on which nobody had to be asked; the next that is agreed on stands for it."""
        self._num_unasked += 1

    def note(self, began: float, ended: float) -> None:
        """A step was agreed on, from one moment to another."""
        if self.num_steps == 0:
            self._first = ended  # connections are made within the first
        else:
            self.waited += (ended - began) * (1 + self._num_unasked)
        self._last = ended
        self.num_steps += 1 + self._num_unasked
        self._num_unasked = 0

    def write(self, rank: int, world: int) -> None:
        """All of it or nothing; a folder that cannot be written to is somebody else's to tell of."""
        if self.folder is None or not self.num_steps:
            return
        found = {
            "kind": "stayfinite.rank", "rank": rank, "world": world, "host": platform.node(),
            "pid": os.getpid(), "steps": self.num_steps + self._num_unasked, "seconds": self._last - self._first,
            "waited": self.waited,
        }  # fmt: skip
        home = self.folder / "ranks"
        temporary = home / f".rank{rank}.{os.getpid()}"
        try:
            make_folder(home)
            with open(temporary, "w", encoding="utf-8", opener=open_private) as handle:
                json.dump(found, handle)
            os.replace(temporary, home / f"rank{rank}.json")
        except OSError:
            return
