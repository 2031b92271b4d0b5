"""Writes each rank's summary into the run folder for the report."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path

from ...private import make_folder, open_private

__all__ = ["RankSummary"]

_clock = time.perf_counter


class RankSummary:
    """Counts the common steps of this rank, and measures what it does in them by the host's clock.

    The ranks wait for each other in the exchange of the gradients, so a step takes equally long on all of them. The rank that
    the others wait for is the one that takes longest to get there.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        """The run folder; None if nothing is written."""
        self.num_steps = 0
        self.num_timed = 0
        self.seconds = self.between = self.forward = 0.0
        """In all timed steps: from check to check, from there to the batch, and from the batch to the last backward."""
        self._began = self._opened = self._backward = 0.0

    def open(self) -> None:
        """Note the first batch of a step."""
        self._opened = self._opened or _clock()

    def start_backward(self) -> None:
        self._backward = _clock()

    def end_step(self) -> None:
        """Note that the step is checked."""
        now = _clock()
        self.num_steps += 1
        if self._began:
            opened = self._opened or self._began
            self.num_timed += 1
            self.seconds += now - self._began
            self.between += opened - self._began
            self.forward += max(self._backward - opened, 0.0)
        self._began = now
        self._opened = self._backward = 0.0

    def interrupt(self) -> None:
        """Leave the time until the next check out: an investigation is no part of a step."""
        self._began = 0.0

    def write(self, rank: int, world: int) -> None:
        """Write the summary completely or not at all; another part reports an unwritable folder."""
        if self.folder is None or not self.num_steps:
            return
        found = {
            "kind": "stayfinite.rank", "rank": rank, "world": world, "host": platform.node(),
            "pid": os.getpid(), "steps": self.num_steps, "timed": self.num_timed, "seconds": self.seconds,
            "between": self.between, "forward": self.forward,
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
