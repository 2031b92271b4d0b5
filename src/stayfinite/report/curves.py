"""Reduces millions of steps to a few thousand points: min, mean, max, non-finite count."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Curves", "Series", "Span", "as_number"]

_NOT_PLOTTED = frozenset({"step", "epoch", "t", "applied", "flags", "parts", "event", "kind"})
_WORDS = {"nan": math.nan, "inf": math.inf, "+inf": math.inf, "-inf": -math.inf}
_MAX_WHOLE = 1 << 1000
_MAX_SERIES = 500
_WORDS |= {"infinity": math.inf, "-infinity": -math.inf}


def as_number(value: Any) -> float | None:
    """A journal's value as a number; "nan" and "inf" are strings there.

    >>> [as_number(v) for v in (1, "inf", "-Infinity", "high", None, True, [0.1, 0.3])]
    [1.0, inf, -inf, None, None, None, 0.3]
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return float(value) if isinstance(value, float) or abs(value) < _MAX_WHOLE else None
    if isinstance(value, str):
        return _WORDS.get(value.lower())
    if isinstance(value, list):
        numbers = [n for v in value if not isinstance(v, list) and (n := as_number(v)) is not None]
        return max(numbers, default=None)
    return None


@dataclass
class Series:
    """One quantity over the steps. Each point covers `count` values from step `x` on."""

    x: list[float] = field(default_factory=list)
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    mean: list[float | None] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    """"" or the non-finite values in it: nan, inf, -inf."""
    num_bad: int = 0
    last: float | None = None

    def halve(self) -> None:
        """Merge neighboring points."""
        pairs = range(0, len(self.x), 2)
        low, high, mean, count, bad = self.low, self.high, self.mean, self.count, self.bad
        joined = [
            (
                _least(low[i : i + 2]),
                _most(high[i : i + 2]),
                _weighted(mean[i : i + 2], count[i : i + 2]),
                sum(count[i : i + 2]),
                next((b for b in bad[i : i + 2] if b), ""),
            )
            for i in pairs
        ]
        self.x = self.x[::2]
        self.low, self.high = [j[0] for j in joined], [j[1] for j in joined]
        self.mean, self.count = [j[2] for j in joined], [j[3] for j in joined]
        self.bad = [j[4] for j in joined]

    def _add(self, x: float, values: Sequence[Any]) -> list[int]:
        """Merge points; returns where values are not finite."""
        try:
            total = sum(values)
            if total - total == 0:
                self._push(x, min(values), max(values), total / len(values), len(values), "")
                self.last = values[-1]
                return []
        except (TypeError, OverflowError):
            pass
        numbers = [as_number(v) for v in values]
        good = [n for n in numbers if n is not None and math.isfinite(n)]
        where = [i for i, n in enumerate(numbers) if n is not None and not math.isfinite(n)]
        if not good and not where:
            return []
        mean = sum(good) / len(good) if good else None
        seen = str(numbers[where[0]]) if where else ""
        self._push(x, min(good, default=None), max(good, default=None), mean, len(good), seen)
        self.num_bad += len(where)
        self.last = next(n for n in reversed(numbers) if n is not None)
        return where

    def _push(self, x: float, low: Any, high: Any, mean: Any, count: int, bad: str) -> None:
        self.x.append(x)
        self.low.append(low)
        self.high.append(high)
        self.mean.append(mean)
        self.count.append(count)
        self.bad.append(bad)


@dataclass
class Span:
    """Consecutive steps with a loss or gradient norm that was not finite."""

    first: int
    last: int
    num_steps: int
    names: set[str]


class Curves:
    """All series of a run, in bounded memory."""

    def __init__(self, points: int = 2000, every: int = 1) -> None:
        self.every = max(1, every)
        self.num_rows = 0
        self.series: dict[str, Series] = {}
        self.spans: list[Span] = []
        self.skipped: list[dict[str, Any]] = []
        self.num_skipped = 0
        self.longest_skip = 0
        self.last_row: Mapping[str, Any] = {}
        self.first_step: int | None = None
        self._points = points
        self._held: list[dict[str, Any]] = []
        self._last_bad_row = -2
        self._skip_run = (-2, 0)

    def feed(self, rows: list[dict[str, Any]]) -> None:
        """Add step lines, in order."""
        if not rows:
            return
        if self.first_step is None:
            self.first_step = int(rows[0]["step"])
        self.last_row = rows[-1]
        rows = self._held + rows
        whole = len(rows) // self.every * self.every
        self._held = rows[whole:]
        self._take(rows[:whole])
        while len(self._steps) > 2 * self._points:
            for series in self.series.values():
                series.halve()
            self._steps = self._steps[::2]
            self.every *= 2

    def finish(self) -> None:
        """The last point may cover fewer steps than the others."""
        rows, self._held = self._held, []
        self._take(rows)

    _steps: list[float] = []  # noqa: RUF012 - replaced, never changed in place

    def _take(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        every = self.every
        starts = range(0, len(rows), every)
        steps = [r["step"] for r in rows]
        self._steps = self._steps + steps[::every]
        bad: dict[int, set[str]] = {}
        for name, column in _columns(rows).items():
            if name not in self.series and len(self.series) >= _MAX_SERIES:
                continue
            series = self.series.setdefault(name, Series())
            watched = name in ("loss", "grad_norm") or name.startswith("parts.")
            for i in starts:
                where = series._add(steps[i], column[i : i + every])
                for j in where if watched else ():
                    bad.setdefault(i + j, set()).add(name)
        self._note_bad(rows, bad)
        self._note_skips(rows)
        self.num_rows += len(rows)

    def _note_bad(self, rows: list[dict[str, Any]], bad: dict[int, set[str]]) -> None:
        for i in sorted(bad):
            row, step = self.num_rows + i, int(rows[i]["step"])
            if row == self._last_bad_row + 1 and self.spans:
                span = self.spans[-1]
                span.last, span.num_steps = step, span.num_steps + 1
                span.names |= bad[i]
            elif len(self.spans) < 5000:
                self.spans.append(Span(step, step, 1, set(bad[i])))
            self._last_bad_row = row

    def _note_skips(self, rows: list[dict[str, Any]]) -> None:
        applied = [r.get("applied") for r in rows]
        if applied.count(None) == len(applied):
            return
        for i, flag in enumerate(applied):
            if flag is not False:
                continue
            row = self.num_rows + i
            last, length = self._skip_run
            self._skip_run = (row, length + 1 if row == last + 1 else 1)
            self.longest_skip = max(self.longest_skip, self._skip_run[1])
            self.num_skipped += 1
            if len(self.skipped) < 1000:
                self.skipped.append(rows[i])


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    # Some rows are enough to know the names: a quantity is in every step or in none.
    names = set().union(*rows[:: max(1, len(rows) // 64)], rows[-1])
    columns = {n: [r.get(n) for r in rows] for n in sorted(names - _NOT_PLOTTED)}
    if "parts" in names:
        parts = [r.get("parts") or {} for r in rows]
        inner = set().union(*parts[:: max(1, len(parts) // 64)], parts[-1])
        for n in sorted(inner):
            columns[f"parts.{n}"] = [p.get(n) for p in parts]
    return columns


def _least(values: Sequence[float | None]) -> float | None:
    return min((v for v in values if v is not None), default=None)


def _most(values: Sequence[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _weighted(means: Sequence[float | None], counts: Sequence[int]) -> float | None:
    total = sum(c for m, c in zip(means, counts) if m is not None)
    if not total:
        return None
    return sum(m * c for m, c in zip(means, counts) if m is not None) / total
