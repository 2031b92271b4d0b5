"""Names the checkpoint to resume from after a launcher restart (torchrun `--max-restarts`)."""

from __future__ import annotations

import json
import os
from pathlib import Path

__all__ = ["attempt", "resumes_after"]


def attempt() -> int:
    """How often the launcher has restarted this training."""
    text = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(text) if text.isdigit() else 0


def resumes_after(journal: Path) -> str:
    """A sentence about the last good checkpoint in the journal of the previous attempt.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "journal.jsonl"
    >>> _ = file.write_text('{"event":"checkpoint","step":6,"path":"last.pt","status":"good"}\\n{"event":"en')
    >>> resumes_after(file)
    'the last good checkpoint that it wrote is last.pt, after 6 steps'
    """
    found = None
    lines = journal.read_text(errors="replace").splitlines() if journal.exists() else []
    for line in lines:
        if '"checkpoint"' not in line or '"good"' not in line:
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the attempt ended while writing it
        if isinstance(entry, dict) and entry.get("status") == "good":
            found = entry
    if found is None:
        return "it had written no checkpoint yet"
    return f"the last good checkpoint that it wrote is {found.get('path')}, after {found.get('step')} steps"
