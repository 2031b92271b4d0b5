"""Curves in a terminal with braille dots, on a log scale where possible."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .curves import Series
from .text import number

__all__ = ["plot_lines", "sparkline"]

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-=+*#@"
_LABEL = 9
_PEAK = 4.0

Columns = list[tuple[float, float] | None]


def plot_lines(
    series: Series, width: int, height: int, is_ascii: bool = False
) -> list[tuple[str, str, str]]:
    """(axis label, curve, markers) for each row. A marker shows values that were not finite.

    >>> s = Series(x=[0, 1], low=[1.0, 9.0], high=[1.0, 9.0], mean=[1.0, 9.0], bad=["", ""])
    >>> [(label.strip(), len(curve), marks) for label, curve, marks in plot_lines(s, 14, 2)]
    [('9', 5, ''), ('1', 5, '')]
    """
    cells = max(4, width - _LABEL)
    columns = _resample(series, cells * (1 if is_ascii else 2))
    values = [v for c in columns if c is not None for v in c]
    if not values:
        return [(" " * _LABEL, " " * cells, _markers(series, cells))] + [
            (" " * _LABEL, " " * cells, "") for _ in range(height - 1)
        ]
    is_log = min(values) > 0
    low, high = (math.log10(min(values)), math.log10(max(values))) if is_log else _ends(values)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    rows = height * (1 if is_ascii else 4)
    grid = _dots(columns, rows, low, high, is_log)
    lines = _ascii_rows(grid) if is_ascii else _braille_rows(grid, cells, height)
    labels = {0: max(values), height - 1: min(values)}
    return [
        (
            number(labels[i]).rjust(_LABEL) if i in labels else " " * _LABEL,
            line,
            _markers(series, cells) if i == 0 else "",
        )
        for i, line in enumerate(lines)
    ]


def sparkline(series: Series, width: int, is_ascii: bool = False) -> str:
    """A curve in one row; `!` where a value was not finite.

    >>> sparkline(Series(x=[0, 1, 2], mean=[1.0, None, 100.0], bad=["", "nan", ""]), 3)
    '▁!█'
    """
    blocks = _ASCII if is_ascii else _BLOCKS
    count = len(series.x)
    if not count:
        return " " * width
    picked = [i * count // width for i in range(width)] if count >= width else list(range(count))
    edges = [*picked[1:], count]
    groups = [range(a, max(a + 1, b)) for a, b in zip(picked, edges)]
    means = [[m for i in g if (m := series.mean[i]) is not None] for g in groups]
    values = [sum(m) / len(m) if m else None for m in means]
    known = [v for v in values if v is not None]
    is_log = bool(known) and min(known) > 0
    scaled = [math.log(v) if v is not None and is_log else v for v in values]
    known = [v for v in scaled if v is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    text = ""
    for group, value in zip(groups, scaled):
        if any(series.bad[i] for i in group):
            text += "!"
        elif value is None:
            text += " "
        else:
            share = (value - low) / (high - low) if high > low else 0.5
            text += blocks[min(7, int(share * 8))]
    return text.ljust(width)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _resample(series: Series, width: int) -> Columns:
    """The mean of each column, and its peak if that differs much; straight lines between."""
    count = len(series.x)
    columns: Columns = [None] * width
    if not count:
        return columns
    first, span = series.x[0], max(series.x[-1] - series.x[0], 1e-12)
    sums: dict[int, tuple[float, int, float]] = {}
    breaks: set[int] = set()
    for x, mean, high in zip(series.x, series.mean, series.high):
        at = min(max(int((x - first) / span * (width - 1)), 0), width - 1)
        if mean is None or high is None:
            breaks.add(at)
            continue
        total, number, peak = sums.get(at, (0.0, 0, high))
        sums[at] = (total + mean, number + 1, max(peak, high))
    before: tuple[int, float] | None = None
    for at in sorted(sums):
        total, number, peak = sums[at]
        mean = total / number
        if before is not None and not any(before[0] <= b <= at for b in breaks):
            for c in range(before[0] + 1, at):
                value = before[1] + (mean - before[1]) * (c - before[0]) / (at - before[0])
                columns[c] = (value, value)
        columns[at] = (mean, peak if peak > _PEAK * abs(mean) else mean)
        before = (at, mean)
    return columns


def _dots(columns: Columns, rows: int, low: float, high: float, is_log: bool) -> list[set[int]]:
    """The lit rows of each column, from the top."""
    grid: list[set[int]] = []
    last: int | None = None
    for column in columns:
        if column is None:
            grid.append(set())
            last = None
            continue
        ends = [math.log10(v) if is_log else v for v in column]
        at, peak = (round((high - v) / (high - low) * (rows - 1)) for v in ends)
        lit = {at, peak}
        if last is not None:  # no gaps in steep parts
            lit |= set(range(min(last, at) + 1, max(last, at)))
        grid.append(lit)
        last = at
    return grid


def _braille_rows(grid: list[set[int]], cells: int, height: int) -> list[str]:
    lines = []
    for row in range(height):
        text = ""
        for cell in range(cells):
            code = 0
            for dx in (0, 1):
                lit = grid[2 * cell + dx]
                for dy in range(4):
                    if 4 * row + dy in lit:
                        code |= _DOTS[dx][dy]
            text += chr(0x2800 + code) if code else " "
        lines.append(text)
    return lines


def _ascii_rows(grid: list[set[int]]) -> list[str]:
    height = max((max(lit) for lit in grid if lit), default=0) + 1
    return ["".join("*" if row in lit else " " for lit in grid) for row in range(height)]


def _markers(series: Series, cells: int) -> str:
    if not any(series.bad):
        return ""
    first, span = series.x[0], max(series.x[-1] - series.x[0], 1e-12)
    marks = [" "] * cells
    for x, bad in zip(series.x, series.bad):
        if bad:
            marks[min(cells - 1, int((x - first) / span * (cells - 1)))] = "v"
    return "".join(marks)
