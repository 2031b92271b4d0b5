"""Moves bad checkpoints away and back. Nothing is deleted or overwritten."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError, UsageError
from .records import CheckpointReport
from .remote import is_remote

__all__ = ["LOG_NAME", "Move", "move", "plan_quarantine", "undo"]

LOG_NAME = "quarantine-log.jsonl"


@dataclass(frozen=True)
class Move:
    """One checkpoint to be moved into quarantine."""

    source: Path
    target: Path
    verdict: str
    log: Path


def plan_quarantine(
    checkpoints: Iterable[CheckpointReport], folder: str | os.PathLike[str]
) -> list[Move]:
    """Plan the moves of corrupt, hostile and unreadable checkpoints.

    Each call makes its own quarantine folder, so nothing can be overwritten. It must be on the same file system, because only then
    is a move atomic.
    """
    home = Path(folder).absolute()
    if home.exists() and not home.is_dir():
        raise UsageError(f"the quarantine must be a folder, and {home} is a file")
    everything = list(checkpoints)
    if any(is_remote(c.path) and not c.is_usable for c in everything):
        raise UsageError("only files on this machine can be put into quarantine")
    places = {Path(c.path).absolute() for c in everything}
    sources: dict[Path, CheckpointReport] = {}
    for checkpoint in everything:
        if checkpoint.is_usable or checkpoint.link_to is not None or _is_unknown(checkpoint):
            continue
        place = Path(checkpoint.path).absolute()
        if any(place in other.parents for other in places):
            # A run's own folder with good checkpoints inside: only the files that are its own.
            sources.update({Path(f.path).absolute(): checkpoint for f in checkpoint.files})
        else:
            sources[place] = checkpoint
    for source in sources:
        if home == source or source in home.parents:
            raise UsageError(f"the quarantine {home} lies inside {source}, which would be moved")
    if not sources:
        return []
    base = Path(os.path.commonpath([p.parent for p in sources]))
    name = time.strftime("%Y%m%d-%H%M%S")
    room, count = home / name, 1
    while room.exists():
        count += 1
        room = home / f"{name}-{count}"
    log = room / LOG_NAME
    return [Move(s, room / s.relative_to(base), c.verdict, log) for s, c in sources.items()]


def _is_unknown(checkpoint: CheckpointReport) -> bool:
    """A file that exceeded our limits may be good, so it stays."""
    found = [*checkpoint.findings, *(f for r in checkpoint.files for f in r.findings)]
    bad = {f.code for f in found if f.severity in ("corrupt", "unreadable", "hostile")}
    return bool(bad) and bad <= {"limit_exceeded", "internal_error"}


def move(moves: list[Move]) -> Path:
    """Carry out a plan; returns the log that undoes it. Each line is written before its move."""
    if not moves:
        raise UsageError("nothing to move")
    log = moves[0].log
    log.parent.mkdir(parents=True)
    room_device = os.stat(log.parent).st_dev
    for step in moves:
        if os.lstat(step.source).st_dev != room_device:
            log.parent.rmdir()
            raise UsageError(
                f"the quarantine {log.parent.parent} is on another file system than {step.source}\n"
                "try: a folder on the same one; across file systems a move is a copy and a delete, "
                "which an interrupt could leave half done"
            )
    with open(log, "x", encoding="utf-8") as handle:
        for step in moves:
            step.target.parent.mkdir(parents=True, exist_ok=True)
            entry = {"from": str(step.source), "to": str(step.target), "verdict": step.verdict}
            handle.write(json.dumps(entry) + "\n")
            handle.flush()
            os.fsync(handle.fileno())
            os.rename(step.source, step.target)
    return log


def undo(log: str | os.PathLike[str]) -> list[Path]:
    """Move everything in a log back; returns what was moved.

    Entries that were moved back already are skipped. If a new file exists at the place of a checkpoint, nothing is moved.
    """
    path = Path(log)
    if path.is_dir():
        path = path / LOG_NAME
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        entries = [(Path(e["from"]), Path(e["to"])) for e in map(json.loads, lines)]
    except OSError as e:
        raise UsageError(f"cannot read the quarantine log {path}: {e.strerror or e}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{path} is not a quarantine log\ntry: the {LOG_NAME} in the quarantine"
        ) from None
    waiting = [(a, b) for a, b in entries if os.path.lexists(b)]
    taken = [a for a, _ in waiting if os.path.lexists(a)]
    if taken:
        listed = "".join(f"\n  {p}" for p in taken)
        raise CheckpointError(
            f"nothing was moved back: there is something new in its place{listed}"
        )
    for source, target in waiting:
        source.parent.mkdir(parents=True, exist_ok=True)
        os.rename(target, source)
    return [a for a, _ in waiting]
