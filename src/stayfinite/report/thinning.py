"""Keeps a journal's files small: rotates and thins them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

__all__ = ["Segments", "segment_paths"]

_PRECIOUS = (b'"kind"', b'"event"', b'"applied":false', b'"nan"', b'inf"', b'"flags"')
_SPIKE = 1.5
_MAX_LEVEL = 30


def segment_paths(path: Path) -> list[Path]:
    """The files of a journal, oldest first; the last one is being written."""
    pattern = re.compile(re.escape(path.stem) + r"-(\d{4,})\.jsonl")
    try:
        found = [(int(m[1]), p) for p in path.parent.iterdir() if (m := pattern.fullmatch(p.name))]
    except OSError:
        found = []
    return [p for _, p in sorted(found)] + ([path] if path.exists() else [])


class Segments:
    """Numbers full files. If all of them together are too large, every other step is removed.

    Events, skipped steps and non-finite values are always kept, and steps whose loss differs much from its neighbor.
    """

    def __init__(self, path: Path, segment_bytes: int, keep_bytes: int) -> None:
        self.path = path
        self.segment_bytes = segment_bytes
        self.keep_bytes = keep_bytes
        self._levels: dict[Path, int] = {}

    def start_session(self) -> int:
        """Rename the files of an earlier process; returns the number of the new session."""
        if not self.path.exists():
            paths = segment_paths(self.path)
            return _session_of(paths[-1]) + 1 if paths else 1
        last = _session_of(self.path)
        _drop_cut_line(self.path)
        self.rotate()
        return last + 1

    def rotate(self) -> None:
        """Give the full file the next number."""
        full = [p for p in segment_paths(self.path) if p != self.path]
        number = int(full[-1].stem.rpartition("-")[2]) + 1 if full else 1
        os.rename(self.path, self.path.with_name(f"{self.path.stem}-{number:04d}.jsonl"))

    def thin(self) -> None:
        """Halve the oldest of the least thinned files until all fit."""
        full = [p for p in segment_paths(self.path) if p != self.path]
        sizes = {p: p.stat().st_size for p in full}
        while full and sum(sizes.values()) > self.keep_bytes - self.segment_bytes:
            for p in full:
                self._levels.setdefault(p, _level_of(p))
            path = min(full, key=lambda p: (self._levels[p], p.name))
            level = self._levels[path]
            if level >= _MAX_LEVEL:
                return
            before = sizes[path]
            sizes[path] = _thin_file(path, level + 1)
            # A file of events does not get smaller, so it is not tried again.
            self._levels[path] = level + 1 if sizes[path] < 0.9 * before else _MAX_LEVEL


def _head(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as f:
            head = json.loads(f.readline())
    except (OSError, ValueError):
        return {}
    return head if isinstance(head, dict) else {}


def _session_of(path: Path) -> int:
    number = _head(path).get("session")
    return number if isinstance(number, int) else 0


def _level_of(path: Path) -> int:
    every = _head(path).get("every")
    return every.bit_length() - 1 if isinstance(every, int) and every > 0 else 0


def _drop_cut_line(path: Path) -> None:
    """Remove half a line that a kill has left at the end."""
    size = path.stat().st_size
    with path.open("rb+") as f:
        back = min(size, 1 << 20)
        f.seek(size - back)
        tail = f.read()
        end = tail.rfind(b"\n") + 1
        if end != len(tail):
            f.truncate(size - back + end)


def _thin_file(path: Path, level: int) -> int:
    lines = path.read_bytes().splitlines(keepends=True)
    head = {**_head(path), "every": 1 << level}
    kept = [json.dumps(head, separators=(",", ":")).encode() + b"\n", *_thin_lines(lines[1:])]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    data = b"".join(kept)
    temporary.write_bytes(data)
    os.replace(temporary, path)
    return len(data)


def _thin_lines(lines: list[bytes]) -> list[bytes]:
    kept: list[bytes] = []
    last_loss: float | None = None
    is_odd = False
    for line in lines:
        if any(word in line for word in _PRECIOUS):
            kept.append(line)
            continue
        is_odd = not is_odd
        loss = _loss(line)
        stands_out = loss is not None and last_loss is not None and loss > _SPIKE * abs(last_loss)
        if is_odd or stands_out:
            kept.append(line)
            last_loss = loss
    if lines and kept[-1:] != lines[-1:]:
        kept.append(lines[-1])  # a notable change
    return kept


def _loss(line: bytes) -> float | None:
    start = line.find(b'"loss":')
    if start < 0:
        return None
    end = line.find(b",", start)
    try:
        return float(line[start + 7 : end])
    except ValueError:
        return None
