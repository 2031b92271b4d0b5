"""The files that a checked script's process leaves for the command and the next start."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from ...plain import from_plain, to_plain
from ..probes import Probe, Seen
from ..records import Finding
from ..runner.groups import Book

__all__ = ["PREDICTED", "FolderLedger", "end_with_the_parent", "read_groups", "write_whole"]

PREDICTED = "predicted"
"""The folder with the steps that break the training."""


class FolderLedger:
    """A ledger in files; each answer and each finished group is one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.current: tuple[str, int] | None = None

    def answer(self, group: str, index: int) -> Seen | None:
        path = self._answer(group, index)
        if not path.exists():
            return None
        seen = pickle.loads(path.read_bytes())  # our own file, written a moment ago
        assert isinstance(seen, Seen)
        return seen

    def note_answer(self, group: str, index: int, seen: Seen) -> None:
        write_whole(self._answer(group, index), pickle.dumps(seen))
        self.current = None

    def about_to_ask(self, group: str, index: int, probe: Probe) -> None:
        self.current = (group, index)
        self.say(group, probe.name, index)

    def is_done(self, group: str) -> bool:
        return self._group(group).exists()

    def begin(self, group: str) -> None:
        self.say(group, "")

    def done(self, group: str, findings: list[Finding], reason: str | None, seconds: float) -> None:
        content = {"findings": to_plain(findings), "reason": reason, "seconds": seconds}
        write_whole(self._group(group), json.dumps(content).encode())

    def say(self, group: str, probe: str, index: int | None = None, share: Any = None) -> None:
        """The current work, for the progress bar and for the parent if this process dies."""
        now = {"group": group, "probe": probe, "index": index, "share": share}
        write_whole(self._folder / "now.json", json.dumps(now).encode())

    def _answer(self, group: str, index: int) -> Path:
        return self._folder / f"answer-{group}-{index}.pkl"

    def _group(self, group: str) -> Path:
        return self._folder / f"group-{group}.json"


def read_groups(folder: Path, names: list[str], book: Book) -> None:
    """Copy the findings of finished groups into the book."""
    for name in names:
        path = folder / f"group-{name}.json"
        if path.exists():
            content = json.loads(path.read_text())
            findings = [from_plain(Finding, f) for f in content["findings"]]
            book.done(name, findings, content["reason"], content["seconds"])


def write_whole(path: Path, content: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


def end_with_the_parent(folder: Path) -> None:
    """End the script if the command is killed, because nothing else would stop it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
