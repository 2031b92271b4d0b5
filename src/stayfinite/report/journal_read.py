"""Reads journals, finished or growing, from stayfinite or another tool."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .curves import Curves
from .foreign import KeyMap
from .journal import JOURNAL_KIND, JOURNAL_NAME, JOURNAL_SCHEMA, journal_name
from .reading import MAX_SECONDS, Clock, is_regular, open_regular
from .thinning import segment_paths

__all__ = ["JournalData", "Tail", "journal_of", "parse_block", "read_journal"]

_BLOCK = 1 << 21
_MAX_EVENTS = 20_000
_MAX_STEP = 1 << 53
_MAX_BYTES = 4 << 30
_MAX_LINE = 1 << 24
_TAIL_POINTS = 400
"""How many points a curve of a growing journal has at most."""
"""Longer lines are omitted and counted."""


@dataclass
class JournalData:
    """The contents of a journal."""

    path: Path | None = None
    head: dict[str, Any] = field(default_factory=dict)
    curves: Curves = field(default_factory=Curves)
    events: list[dict[str, Any]] = field(default_factory=list)
    num_sessions: int = 0
    session: int = 0
    num_broken: int = 0
    """The number of lines that are not JSON objects: cut by a kill, or other text."""
    is_foreign: bool = False
    cut: str = ""
    """The reason why the log was not read completely, else ""."""
    keys: dict[str, str] = field(default_factory=dict)
    """The keys of a foreign log from which the fields were read."""

    @property
    def is_ended(self) -> bool:
        return bool(self.events) and self.events[-1].get("event") == "end"

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e.get("event") == kind]


def journal_of(run: str | Path, rank: int = 0) -> Path | None:
    """The journal of a run folder, or the file itself; None for a folder with incidents only."""
    run = Path(run)
    if run.is_file():
        return run
    if run.exists() and not run.is_dir():
        raise UsageError(f"{run} is neither a run folder nor an ordinary file")
    if not run.exists():
        raise UsageError(f"no such run: {run}\n  try: a run folder, or a .jsonl log")
    path = run / journal_name(rank)
    if any(is_regular(p) for p in segment_paths(path)):
        return path
    if rank or not (run / "incidents").is_dir():
        inside = sorted(p.name for p in run.glob("*.jsonl"))[:8]
        hint = f"; it has {', '.join(inside)}" if inside else ""
        if rank and inside:
            raise UsageError(f"{run} has no journal of rank {rank}{hint}")
        raise UsageError(
            f"{run} is no run folder: neither {path.name} nor incidents/ is in it{hint}\n"
            "  try: the folder that `stayfinite run` named, or a .jsonl log"
        )
    return None


def parse_block(block: bytes) -> tuple[list[Any], int]:
    """The objects of complete lines, and the number of other lines.

    >>> parse_block(b'{"a": 1}\\n{"a": NaN}\\n{"a": 2\\n')
    ([{'a': 1}, {'a': nan}], 1)
    """
    body = block.strip()
    if not body:
        return [], 0
    try:
        # One call for thousands of lines. JSON escapes newlines, so lines have none inside.
        rows = json.loads(b"[" + body.replace(b"\n", b",") + b"]")
        if all(map(_is_object, rows)):
            return rows, 0
    except (ValueError, RecursionError):
        pass
    good: list[Any] = []
    num_broken = 0
    for line in body.split(b"\n"):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            good.append(value)
        else:
            num_broken += 1
    return good, num_broken


def sound_rows(rows: list[Any]) -> tuple[list[Any], int]:
    """The lines that a run could have written, and the number of others.

    A step is a whole number; parts of the loss are a mapping.

    >>> sound_rows([{"step": 1}, {"step": 1e400}, {"step": "x"}, {"step": 2.0}])
    ([{'step': 1}, {'step': 2}], 2)
    """
    good = [r for r in rows if type(r["step"]) is int and -_MAX_STEP < r["step"] < _MAX_STEP]
    if len(good) != len(rows):
        good = [r for row in rows if (r := _with_whole_step(row)) is not None]
    kept = [r for r in good if "parts" not in r or isinstance(r["parts"], dict)]
    return kept, len(rows) - len(kept)


def _with_whole_step(row: dict[str, Any]) -> dict[str, Any] | None:
    step = row["step"]
    if isinstance(step, float) and step == step and abs(step) < _MAX_STEP and step == int(step):
        return {**row, "step": int(step)}
    is_whole = type(step) is int and -_MAX_STEP < step < _MAX_STEP
    return row if is_whole else None


def sound_event(event: dict[str, Any]) -> bool:
    """Whether an event has the shape that a run writes."""
    step = event.get("step")
    if step is not None and not (type(step) is int and -_MAX_STEP < step < _MAX_STEP):
        return False
    if event.get("event") != "layers":
        return isinstance(event.get("event"), str) and isinstance(event.get("id", ""), str)
    lists = [event.get(k, []) for k in ("names", "dtypes", "weight", "grad", "update")]
    return step is not None and "grad" in event and all(isinstance(v, list) for v in lists)


def _is_object(value: Any) -> bool:
    return type(value) is dict


def read_journal(
    path: Path,
    points: int = 2000,
    session: int | None = None,
    keys: KeyMap | None = None,
    max_seconds: float = MAX_SECONDS,
) -> JournalData:
    """Read as much as the time allows, once and in bounded memory."""
    clock = Clock(max_seconds)
    paths = [path] if path.name != JOURNAL_NAME and path.is_file() else segment_paths(path)
    paths = [p for p in paths if is_regular(p)]
    heads = [_head(p) for p in paths]
    data = JournalData(path=path)
    if heads and heads[0] is not None:
        paths = _choose_session(data, paths, heads, session)
    else:
        data.is_foreign = True
    num_lines = sum(_count_lines(p, clock) for p in paths)
    data.curves = Curves(points, every=max(1, -(-num_lines // points) if num_lines > points else 1))
    taker = _Taker(data, keys or KeyMap())
    _take_all(taker, paths, data, clock)
    data.curves.finish()
    return data


def _take_all(taker: _Taker, paths: list[Path], data: JournalData, clock: Clock) -> None:
    num_bytes = 0
    for block in (block for p in paths for block in _blocks(p)):
        is_first = num_bytes == 0
        num_bytes += len(block)
        if num_bytes > _MAX_BYTES:
            data.cut = "the log has more than 4 GB; the rest of it was not read: limit_exceeded"
            return
        if clock.is_over and not is_first:
            data.cut = clock.message
            return
        taker.take(block)


def _choose_session(
    data: JournalData, paths: list[Path], heads: list[dict[str, Any] | None], session: int | None
) -> list[Path]:
    numbers = [_whole((h or {}).get("session"), 1) for h in heads]
    newest = max(_whole((h or {}).get("schema"), 0) for h in heads)
    if newest > JOURNAL_SCHEMA:
        raise UsageError(
            f"the journal has schema {newest}, this version reads up to {JOURNAL_SCHEMA}; "
            "upgrade stayfinite"
        )
    known = sorted(set(numbers))
    data.num_sessions = len(known)
    data.session = known[-1] if session is None else session
    if data.session not in known:
        raise UsageError(f"no session {session}; there are {', '.join(map(str, known))}")
    return [p for p, n in zip(paths, numbers) if n == data.session]


def _whole(value: Any, default: int) -> int:
    return value if type(value) is int else default


def _head(path: Path) -> dict[str, Any] | None:
    try:
        with open_regular(path) as f:
            head = json.loads(f.readline(_MAX_LINE))
    except (OSError, ValueError, RecursionError):
        return None
    is_ours = isinstance(head, dict) and head.get("kind") == JOURNAL_KIND
    return head if is_ours else None


def _count_lines(path: Path, clock: Clock) -> int:
    number = 0
    with open_regular(path) as f:
        while not clock.is_over and (block := f.read(_BLOCK)):
            number += block.count(b"\n")
    return number


def _blocks(path: Path) -> Iterator[bytes]:
    """Complete lines, a few megabytes at a time."""
    rest: list[bytes] = []
    with open_regular(path) as f:
        while block := f.read(_BLOCK):
            end = block.rfind(b"\n") + 1
            if end:
                yield b"".join(rest) + block[:end]
                rest = [block[end:]]
            elif len(rest) * _BLOCK < _MAX_LINE:
                rest.append(block)
    if rest:
        yield b"".join(rest)


class _Taker:
    """Sorts lines into steps and events."""

    def __init__(self, data: JournalData, keys: KeyMap) -> None:
        self._data = data
        self._keys = keys
        self._num_rows = 0

    def take(self, block: bytes) -> None:
        data = self._data
        lines, broken = parse_block(block)
        data.num_broken += broken
        if data.is_foreign:
            self._take_foreign(lines)
            return
        if b'"event"' in block or b'"kind"' in block:
            for line in lines:
                if "event" in line:
                    is_sound = sound_event(line)
                    data.num_broken += not is_sound
                    data.events += [line] if is_sound else []
                elif line.get("kind") == JOURNAL_KIND:
                    data.head = {**line, **data.head}
            lines = [r for r in lines if "event" not in r and "kind" not in r]
            if len(data.events) > _MAX_EVENTS:
                del data.events[1000 : len(data.events) - _MAX_EVENTS // 2]
        rows, broken = sound_rows([r for r in lines if "step" in r])
        data.num_broken += broken
        data.curves.feed(rows)

    def _take_foreign(self, lines: list[dict[str, Any]]) -> None:
        rows = []
        for line in lines:
            row = self._keys.row(line, self._num_rows)
            if row is not None:
                rows.append(row)
                self._num_rows += 1
            elif self._keys.has_bad_step:
                self._data.num_broken += 1
        self._data.keys = dict(self._keys.found)
        self._data.curves.feed(rows)


class Tail:
    """A growing journal: each `poll` reads the new lines."""

    def __init__(
        self,
        path: Path,
        keys: KeyMap | None = None,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        self.path = path
        self._max_seconds = max_seconds
        self._keys = keys
        self._file: Any = None
        self._rest = b""
        self.data = JournalData(path=path)
        self._taker = _Taker(self.data, keys or KeyMap())

    def poll(self) -> bool:
        """Read new lines; returns whether there were any. What the time does not allow is left for the next call."""
        clock = Clock(self._max_seconds)
        self.data.cut = ""
        if self._file is None and not self._open(clock):
            return False
        is_new = self._read(clock)
        if not self.data.cut and self._is_replaced():
            self._file.close()
            self._file = None
            self._rest = b""
            is_new = self.poll() or is_new
        return is_new

    def _open(self, clock: Clock) -> bool:
        try:
            self._file = open_regular(self.path)
        except OSError:
            return False
        head = _head(self.path)
        session = _whole(head.get("session"), 1) if head else 0
        if session != self.data.session or self.data.curves.num_rows == 0:
            earlier = [p for p in segment_paths(self.path) if p != self.path] if head else []
            self.data = JournalData(path=self.path, session=session, is_foreign=head is None)
            self.data.curves = Curves(_TAIL_POINTS)
            self._taker = _Taker(self.data, self._keys or KeyMap())
            same = [p for p in earlier if _whole((_head(p) or {}).get("session"), 1) == session]
            _take_all(self._taker, same, self.data, clock)
        return True

    def _read(self, clock: Clock) -> bool:
        is_new = False
        while block := self._file.read(_BLOCK):
            is_new = True
            block = self._rest + block
            end = block.rfind(b"\n") + 1
            self._rest = block[end:] if len(block) - end <= _MAX_LINE else b""
            self._taker.take(block[:end])
            if clock.is_over:
                self.data.cut = clock.message
                break
        return is_new

    def _is_replaced(self) -> bool:
        try:
            now = os.stat(self.path)
        except OSError:
            return False
        own = os.fstat(self._file.fileno())
        return (now.st_dev, now.st_ino) != (own.st_dev, own.st_ino)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
