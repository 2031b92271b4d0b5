"""Writes the journal: one JSON line per step, with events in between, in batches.

`append` only stores its arguments. A few times a second, numbers are read and whole lines are written together. A process that is
killed loses at most the last `flush_seconds`. A line that is cut by the kill is ignored by readers and removed by the next
writer. The schema is in docs/JOURNAL.md.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from ..plain import to_plain
from ..private import make_folder, open_private
from ..records import Incident
from ..saying import say
from .store import warn_unwritable
from .text import headline
from .thinning import Segments

__all__ = ["JOURNAL_NAME", "JOURNAL_SCHEMA", "Journal", "Listener", "Row", "journal_name"]

JOURNAL_NAME = "journal.jsonl"
JOURNAL_SCHEMA = 1
JOURNAL_KIND = "stayfinite.journal"

Row = tuple[Any, ...]
"""(step, epoch, loss, grad_norm, lrs, scale, is_applied) and optionally a dict of extras: `parts` (name -> number),
`flags` (list of words), `update_ratio`.
"""

_clock = time.perf_counter
_PLAIN = '{"step":%d,"epoch":%d,"loss":%.7g%s,"t":%.3f,"ms":%.3g}\n'
_WITH_NORM = '{"step":%d,"epoch":%d,"loss":%.7g,"grad_norm":%.7g%s,"t":%.3f,"ms":%.3g}\n'


class Listener(Protocol):
    """Receives everything that the journal writes: a sink."""

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Step lines as in the journal, but with real NaN and Inf."""

    def event(self, event: Mapping[str, Any]) -> None:
        """One event line."""

    def close(self) -> None:
        """The run has ended."""


def journal_name(rank: int) -> str:
    """The file name of a rank; each rank of a distributed run writes its own file.

    >>> journal_name(0), journal_name(3)
    ('journal.jsonl', 'journal.rank3.jsonl')
    """
    return JOURNAL_NAME if rank == 0 else f"journal.rank{rank}.jsonl"


class Journal:
    """Writes a run's journal.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run" / "journal.jsonl"
    >>> journal = Journal(path)
    >>> journal.append((0, 0, 0.5, None, (0.1,), None, True))
    >>> path.exists()  # nothing yet: the first flush makes the folder
    False
    >>> journal.close()
    >>> [json.loads(line).get("loss") for line in path.read_text().splitlines()]
    [None, 0.5, None]
    """

    def __init__(
        self,
        path: str | Path,
        *,
        about: Mapping[str, Any] | None = None,
        flush_seconds: float = 0.25,
        flush_lines: int = 512,
        segment_bytes: int = 8 << 20,
        keep_bytes: int = 256 << 20,
        listeners: Sequence[Listener] = (),
        stage: Callable[[list[tuple[Row, float]], bool], list[tuple[Row, float]]] | None = None,
    ) -> None:
        self.path = Path(path)
        self.listeners = list(listeners)
        self.parts: dict[str, Any] = {}
        """Parts of the loss for the line of the next step."""
        self._about = dict(about or {})
        self._flush_seconds = flush_seconds
        self._flush_lines = flush_lines
        self._stage = stage
        self._segments = Segments(self.path, segment_bytes, keep_bytes)
        self._rows: list[tuple[Row, float]] = []
        self._started = _clock()
        self._started_at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        self._flush_at = self._started + flush_seconds
        self._last: float | None = None
        self._lr: tuple[Any, str] = (None, "")
        self._pid = os.getpid()
        self._fd: int | None = None
        self._size = 0
        self._session = 1
        self._is_broken = False
        self._is_closed = False

    def append(self, row: Row) -> None:
        """Store one step; 0-dim tensors by reference."""
        now = _clock()
        if self.parts:
            row, self.parts = (*row, {"parts": self.parts}), {}
        rows = self._rows
        rows.append((row, now))
        if now >= self._flush_at or len(rows) >= self._flush_lines:
            self.flush()

    def event(self, kind: str, **fields: Any) -> None:
        """Write an event at once, after the steps before it."""
        self.flush(is_last=True)
        plain = {"event": kind, **fields, "t": round(_clock() - self._started, 3)}
        self._write(json.dumps(to_plain(plain), separators=(",", ":"), allow_nan=False) + "\n")
        self._notify(lambda listener: listener.event(plain))

    def incident(self, incident: Incident) -> None:
        """Write the line of the failed step, and the incident after it; a save that was held back is no step."""
        event = incident.event
        if incident.action.kind != "diverted":
            self.parts = {}
            figures = (event.step, event.epoch, event.loss, event.grad_norm, event.lr, event.scale)
            self.append((*figures, False, {"flags": ["incident"]}))
        self.event(
            "incident",
            step=event.step,
            id=incident.id,
            text=headline(incident),
            symptom=event.symptom,
            phase=event.phase,
            cause=incident.diagnosis.cause,
            op=incident.location.op,
            module=incident.location.module,
            action=incident.action.kind,
            rank=event.rank,
        )

    def flush(self, is_last: bool = False) -> None:
        """Write the stored steps; `is_last` also waits for values on a device."""
        rows, self._rows = self._rows, []
        self._flush_at = _clock() + self._flush_seconds
        if self._stage is not None:
            rows = self._stage(rows, is_last)
        if not rows or self._pid != os.getpid():
            return  # a forked loader worker has a copy of the rows and must not write
        self._write("".join([self._line(row, now) for row, now in rows]))
        if self.listeners:
            values = [self._values(row, now) for row, now in rows]
            self._notify(lambda listener: listener.rows(values))

    def close(self, **fields: Any) -> None:
        """Write the remaining rows and an `end` line; a journal without any line leaves no file."""
        if self._is_closed:
            return
        self._is_closed = True
        self.flush(is_last=True)
        if self._fd is not None:
            self.event("end", **fields)
            os.close(self._fd)
            self._fd = None
        self._notify(lambda listener: listener.close())

    def _line(self, row: Row, now: float) -> str:
        step, epoch, loss, norm, lrs, scale, is_applied = row[:7]
        if lrs != self._lr[0]:
            self._lr = (lrs, _rates(lrs))
        elapsed = now - self._started
        last, self._last = self._last, elapsed
        ms = (elapsed - last) * 1e3 if last is not None else 0.0
        if is_applied and scale is None and last is not None and len(row) == 7:
            # The usual case of nearly every line: one formatting call.
            if type(loss) is not float:
                loss = _plain(loss)
            if norm is None:
                if loss is not None and loss - loss == 0:
                    return _PLAIN % (step, epoch, loss, self._lr[1], elapsed, ms)
            else:
                norm = _plain(norm)
                if loss is not None and norm is not None and loss - loss == norm - norm == 0:
                    return _WITH_NORM % (step, epoch, loss, norm, self._lr[1], elapsed, ms)
        text = f'{{"step":{step},"epoch":{epoch},"loss":{_number(loss)}'
        if norm is not None:
            text += f',"grad_norm":{_number(norm)}'
        text += self._lr[1]
        if scale is not None:
            text += f',"scale":{_number(scale)}'
        if not is_applied:
            text += ',"applied":false'
        if len(row) > 7:
            text += _extras(row[7])
        # The time before the first step is imports and loading.
        took = f',"ms":{ms:.3g}' if last is not None else ""
        return f'{text},"t":{elapsed:.3f}{took}}}\n'

    def _values(self, row: Row, now: float) -> dict[str, Any]:
        names = ("step", "epoch", "loss", "grad_norm", "lr", "scale", "applied")
        values = {n: _value(v) for n, v in zip(names, row) if v is not None}
        values["lr"] = [float(v) for v in row[4] or ()]
        if len(row) > 7:
            values.update({k: _value(v) for k, v in row[7].items()})
        values["t"] = now - self._started
        return values

    def _write(self, text: str) -> None:
        if self._is_broken or self._pid != os.getpid():
            return
        try:
            if self._fd is None:
                self._open()
            assert self._fd is not None
            data = text.encode("utf-8", "backslashreplace")
            self._size += len(data)
            while data:
                data = data[os.write(self._fd, data) :]
            if self._size >= self._segments.segment_bytes:
                self._rotate()
        except OSError as e:
            self._is_broken = True
            warn_unwritable(self.path.parent, e)

    def _open(self) -> None:
        make_folder(self.path.parent)
        self._session = self._segments.start_session()
        self._begin_file()

    def _begin_file(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._fd = open_private(self.path, flags)
        head = {
            "kind": JOURNAL_KIND,
            "schema": JOURNAL_SCHEMA,
            "session": self._session,
            "started": self._started_at,
            **self._about,
        }
        data = json.dumps(to_plain(head), separators=(",", ":")).encode() + b"\n"
        self._size = os.write(self._fd, data)

    def _rotate(self) -> None:
        assert self._fd is not None
        os.close(self._fd)
        self._fd = None
        self._segments.rotate()
        self._begin_file()
        self._segments.thin()

    def _notify(self, send: Callable[[Listener], None]) -> None:
        for listener in list(self.listeners):
            try:
                send(listener)
            except Exception as e:
                # A sink that fails is removed, because it must never stop a training.
                self.listeners.remove(listener)
                name = type(listener).__name__
                say(f"stayfinite: {name} failed and is off now: {e}")


def _plain(value: Any) -> Any:
    """The number in a 0-dim tensor; None if it is not a single number."""
    if type(value) is float:
        return value
    try:
        value = value.item()
    except AttributeError:
        pass
    except (RuntimeError, ValueError):
        return None
    return None if isinstance(value, complex) else value


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _value(v) for k, v in value.items()}
    return _plain(value)


def _number(value: Any) -> str:
    """A number as JSON text; NaN and Inf become strings, as in incidents.

    >>> [_number(v) for v in (None, 0.25, 65536, float("nan"), float("-inf"))]
    ['null', '0.25', '65536', '"nan"', '"-inf"']
    """
    value = _plain(value)
    if value is None:
        return "null"
    if value - value == 0:
        return f"{value:.7g}"
    return '"nan"' if value != value else '"inf"' if value > 0 else '"-inf"'


def _rates(lrs: Sequence[Any]) -> str:
    if not lrs:
        return ""
    texts = [_number(v) for v in lrs]
    # One number if all groups agree, which is what people plot.
    shown = texts[0] if len(set(texts)) == 1 else f"[{','.join(texts)}]"
    return f',"lr":{shown}'


def _extras(extras: Mapping[str, Any]) -> str:
    text = ""
    for key, value in extras.items():
        if key == "flags":
            text += f',"flags":{json.dumps(list(value))}'
        elif isinstance(value, Mapping):
            inner = ",".join(f"{json.dumps(str(k))}:{_number(v)}" for k, v in value.items())
            text += f",{json.dumps(str(key))}:{{{inner}}}"
        else:
            text += f",{json.dumps(str(key))}:{_number(value)}"
    return text
