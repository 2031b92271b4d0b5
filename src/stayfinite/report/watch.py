"""The live view in a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.live import Live
from rich.text import Text

from .braille import plot_lines, sparkline
from .curves import Series, as_number
from .foreign import KeyMap
from .journal import journal_name
from .journal_read import JournalData, Tail
from .layers import latest_layers
from .reading import MAX_SECONDS
from .text import number

__all__ = ["frame", "watch"]

_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), "?")


def watch(
    run: Path,
    interval: float = 0.5,
    is_once: bool = False,
    keys: KeyMap | None = None,
    max_seconds: float = MAX_SECONDS,
) -> JournalData:
    """Show the run until `q` or Ctrl-C; without a terminal, only once.

    Returns the data. A log that takes longer than `max_seconds` to read is continued in the next refresh.
    """
    path = run if run.is_file() else run / journal_name(0)
    tail = Tail(path, keys=keys, max_seconds=max_seconds)
    console = Console(highlight=False)
    is_ascii = "utf" not in console.encoding.lower()  # read now, because Live replaces stdout
    name = run.absolute().name
    try:
        tail.poll()
        if is_once or not console.is_terminal:
            size = console.width, max(24, console.height - 1)
            console.print(frame(tail.data, name, *size, is_ascii))
            return tail.data
        # COLUMNS is not updated when the window is resized.
        kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        console = Console(highlight=False, _environ=kept)
        with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                tail.poll()
                live.update(frame(tail.data, name, *console.size, is_ascii), refresh=True)
                if pressed(interval) in ("q", "Q", "\x1b"):
                    return tail.data
    except KeyboardInterrupt:
        return tail.data
    finally:
        tail.close()


@contextmanager
def _keys() -> Iterator[Any]:
    """Read single keys without Enter, if the terminal supports that."""
    try:
        import select
        import termios
        import tty

        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
    except (ImportError, OSError, ValueError):
        yield lambda seconds: time.sleep(seconds)
        return

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([fd], [], [], seconds)
        return os.read(fd, 16).decode(errors="ignore") if ready else ""

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def frame(data: JournalData, name: str, width: int, height: int, is_ascii: bool = False) -> Text:
    """One screen of at most this size."""
    lines = [_headline(data, name, width), _figures(data)]
    if not data.curves.num_rows:
        lines.append(Text("waiting for the first step ...", style="dim"))
        return _fit(lines, width, height)
    layers = latest_layers(data.of_kind("layers"))
    ledger = _incidents(data)
    rest = height - len(lines) - 1
    num_layers = min(len(layers), max(2, rest // 6)) if layers else 0
    num_ledger = min(max(1, len(ledger)), max(3, rest // 6))
    small = [n for n in ("lr", "scale", "update_ratio", "ms") if _has(data, n)][:3]
    used = len(small) + (num_layers + 1 if num_layers else 0) + num_ledger + 1
    lines += _plots(data, width, max(6, rest - used), is_ascii)
    for key in small:
        lines.append(_spark(key, data.curves.series[key], width, is_ascii))
    if num_layers:
        lines.append(Text("headroom by layer, least first", style="bold"))
        lines += [_layer(entry, width, is_ascii) for entry in layers[:num_layers]]
    lines.append(Text("not finite" if data.is_foreign else "incidents, newest first", style="bold"))
    lines += ledger[:num_ledger] or [Text("  none", style="green")]
    lines.append(Text("q quits", style="dim"))
    return _fit(lines, width, height)


def _has(data: JournalData, name: str) -> bool:
    series = data.curves.series.get(name)
    return series is not None and bool(series.x)


def _headline(data: JournalData, name: str, width: int) -> Text:
    row = data.curves.last_row
    parts = [f"step {row.get('step', '-')}"]
    if row.get("epoch") is not None:
        parts.append(f"epoch {row['epoch']}")
    speed = data.curves.series.get("ms")
    if speed is not None and speed.mean and (ms := speed.mean[-1]):
        parts.append(f"{ms:.3g} ms/step")
    if isinstance(row.get("t"), (int, float)):
        parts.append(f"{row['t']:.0f} s")
    state = "ended" if data.is_ended else "log" if data.is_foreign else "running"
    state = "still reading" if data.cut else state
    tail = "  ".join([*parts, state])
    room = max(8, width - len(tail) - 2)
    shown = name if cell_len(name) <= room else set_cell_size(name, room - 1) + "…"
    line = Text().append(shown, style="bold")
    line.append("  " + "  ".join(parts))
    line.append(f"  {state}", style="green" if state != "running" else "yellow")
    return line


def _figures(data: JournalData) -> Text:
    row, curves = data.curves.last_row, data.curves
    line = Text()
    for key in ("loss", "grad_norm", "lr", "scale"):
        value = as_number(row.get(key))
        if value is not None:
            is_bad = value - value != 0
            line.append(f"{key.replace('_', ' ')} ", style="dim")
            line.append(f"{number(value)}  ", style="bold red" if is_bad else "")
    line.append("skipped ", style="dim")
    line.append(f"{curves.num_skipped}", style="bold red" if curves.num_skipped else "green")
    line.append(f" ({curves.longest_skip} in a row)", style="dim")
    return line


def _plots(data: JournalData, width: int, height: int, is_ascii: bool) -> list[Text]:
    """Loss and gradient norm, side by side if there is room."""
    series = _with_sampled_norm(data)
    shown = [(n, series[n]) for n in ("loss", "grad_norm") if n in series and series[n].x]
    if not shown:
        return []
    if width >= 120 and len(shown) == 2:
        half = (width - 2) // 2
        blocks = [_plot(n, s, half, height, is_ascii) for n, s in shown]
        joined = []
        for left, right in zip(*blocks):
            left.append(" " * (half + 2 - left.cell_len))
            joined.append(left + right)
        return joined
    first = height if len(shown) == 1 else height - height * 2 // 5
    sizes = [first, height - first]
    return [line for (n, s), h in zip(shown, sizes) for line in _plot(n, s, width, h, is_ascii)]


def _with_sampled_norm(data: JournalData) -> dict[str, Series]:
    """The norm of the loop, or of the `layers` lines if the loop does not clip."""
    series = dict(data.curves.series)
    if "grad_norm" not in series:
        norm = Series()
        for event in data.of_kind("layers"):
            if event.get("grad_norm") is not None:
                norm._add(event["step"], [event["grad_norm"]])
        series["grad_norm"] = norm
    return series


def _plot(name: str, series: Series, width: int, height: int, is_ascii: bool) -> list[Text]:
    title = Text().append(name.replace("_", " "), style="bold")
    if series.num_bad:
        title.append(f"  {series.num_bad} not finite (v)", style="red")
    lines = [title]
    for label, curve, marks in plot_lines(series, width - 1, max(1, height - 1), is_ascii):
        line = Text().append(label, style="dim")
        line.append("│" if not is_ascii else "|", style="dim")
        for i, char in enumerate(curve):
            is_marked = i < len(marks) and marks[i] != " "
            line.append(marks[i] if is_marked else char, style="bold red" if is_marked else "cyan")
        lines.append(line)
    return lines[:height]


def _spark(name: str, series: Series, width: int, is_ascii: bool) -> Text:
    line = Text().append(f"{name.replace('_', ' '):<13}", style="dim")
    text = sparkline(series, max(10, width - 26), is_ascii)
    line.append(text, style="cyan")
    line.append(f" {number(series.last):>11}")
    return line


def _layer(entry: tuple[str, float, float | None], width: int, is_ascii: bool) -> Text:
    name, bits, grad = entry
    label = min(34, width // 3)
    shown = name if len(name) <= label else "…" + name[1 - label :]
    style = "red" if bits < 2 else "yellow" if bits < 6 else "green"
    bar = min(40, max(4, width - label - 34))
    lit = max(1, min(bar, int(bits / 32 * bar)))
    line = Text(f"  {shown:<{label}} ")
    line.append(f"{bits:6.1f} bits ", style=style)
    line.append(("#" if is_ascii else "█") * lit + " " * (bar - lit), style=style)
    line.append(f"  grad {number(grad)}", style="dim")
    return line


def _incidents(data: JournalData) -> list[Text]:
    found = [e for e in data.events if e.get("event") in ("incident", "warning")]
    if found:
        return [_entry(e) for e in reversed(found[-50:])]
    lines = []
    for span in reversed(data.curves.spans[-50:]):
        where = f"step {span.first}" + (f" to {span.last}" if span.last != span.first else "")
        names = ", ".join(sorted(span.names))
        lines.append(Text(f"  {where}: {names} not finite", style="red"))
    return lines


def _entry(event: dict[str, Any]) -> Text:
    if event["event"] == "warning":
        return Text(f"  step {event.get('step')}: {event.get('text', '')}", style="yellow")
    return Text(f"  {_described(event)}", style="red")


def _described(event: dict[str, Any]) -> str:
    """The headline without paths: at 80 columns the cause is more important."""
    what = event.get("cause") or f"{event.get('symptom') or 'value'} not finite"
    text = f"step {event.get('step')}: {what}"
    if event.get("op"):
        text += f", {event['op']}"
    if event.get("module"):
        text += f" in {event['module']}"
    return f"{text}; {event['action']}" if event.get("action") else text


def _fit(lines: list[Text], width: int, height: int) -> Text:
    """Cut a line to the width, because wrapping would flicker, and remove control characters."""
    kept = lines[: height - 1] + lines[-1:] if len(lines) > height else lines
    for line in kept:
        line.plain = line.plain.translate(_CONTROL)
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True, end="").join(kept)
