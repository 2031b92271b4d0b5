"""Writes each rank's summary into the run folder for the report."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

from ...private import make_folder, open_private

__all__ = ["RankSummary"]


class RankSummary:
    """Counts the common steps of this rank, and how long it waited for the others.

    At a synchronization, the rank that comes last waits least: it is the one that the others wait for.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        """The run folder; None if nothing is written."""
        self.num_steps = 0
        self.waited = 0.0
        self._first = self._last = 0.0
        self._num_unasked = 0

    def pass_by(self) -> None:
        """Note a step without a synchronization; it counts with the next one."""
        self._num_unasked += 1

    def note(self, began: float, ended: float) -> None:
        """Note a synchronization and its duration."""
        if self.num_steps == 0:
            self._first = ended  # the first one includes making the connections
        else:
            self.waited += (ended - began) * (1 + self._num_unasked)
        self._last = ended
        self.num_steps += 1 + self._num_unasked
        self._num_unasked = 0

    def write(self, rank: int, world: int) -> None:
        """Write the summary completely or not at all; another part reports an unwritable folder."""
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
