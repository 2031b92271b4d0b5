"""`stayfinite scan` and `stayfinite diff`: the checkpoint doctor in the terminal."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import scan_options as o
from .plain import plain_errors, printable

if TYPE_CHECKING:
    from ..checkpoint import Limits, Progress, ScanReport

__all__ = ["register"]

_INTERRUPTED = 130
_COLORS = (
    (r"\bhealthy\b", "green"),
    (r"\bsuspicious\b", "yellow"),
    (r"\b(corrupt|hostile|unreadable)\b", "bold red"),
    (r"^ *try:", "cyan"),
    (r"^  (last good|broke at):", "bold"),
)


def register(app: typer.Typer) -> None:
    """Add `scan` and `diff` to the command line."""
    app.command(name="scan", short_help="Find corrupt checkpoints and the last good one.")(
        scan_command
    )
    app.command(name="diff", short_help="Show what changed between two checkpoints.")(diff_command)


def scan_command(
    paths: o.Paths = None,
    config: o.Config = None,
    lr: o.Rate = None,
    quarantine: o.Quarantine = None,
    undo: o.Undo = None,
    yes: o.Yes = False,
    strict: o.Strict = False,
    as_json: o.AsJson = False,
    full: o.Full = False,
    checksums: o.Checksums = False,
    jobs: o.Jobs = None,
    verbose: o.Verbose = False,
    max_seconds: o.MaxSeconds = 10.0,
    max_memory: o.MaxMemory = 300,
    watch: o.Watch = False,
    on_bad: o.OnBad = None,
    last_good: o.LastGood = None,
    interval: o.Interval = 2.0,
    ray: o.RayAddress = None,
) -> None:
    """Which checkpoints are corrupt, and which is the last good one. Runs nothing in them.

    A PATH may be in a store, too: s3://, gs://, hf://, https:// and what else fsspec knows.

    Exit code: 0 clean, 1 something was found, 2 wrong usage, 130 interrupted.
    """
    with plain_errors("no checkpoint is half moved", checkpoint_code=1):
        if undo is not None:
            _undo(undo)
            return
        if not paths:
            from ..errors import UsageError

            raise UsageError("nothing to scan\ntry: stayfinite scan runs/my-run")
        wanted, source = _wanted_rate(config, lr)
        limits = _limits(max_seconds, max_memory)
        if watch or on_bad is not None or last_good is not None:
            raise typer.Exit(_watch(paths, watch, interval, on_bad, last_good, limits))
        report = _scan_with_bar(
            paths, wanted, source, as_json or verbose, full, checksums, jobs, limits, ray
        )
        _print_report(report, as_json, verbose)
        if report.num_unseen:
            raise typer.Exit(_INTERRUPTED)
        if quarantine is not None:
            _quarantine(report, quarantine, yes, quiet=as_json)
        raise typer.Exit(report.exit_code(strict=strict))


def diff_command(
    a: Annotated[str, typer.Argument(metavar="A", help="A checkpoint.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List every tensor that differs.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page with a picture.")
    ] = None,
    max_seconds: o.MaxSeconds = 10.0,
    max_memory: o.MaxMemory = 300,
) -> None:
    """What changed between two checkpoints: the weights by layer, then the rest.

    Exit code: 0 no difference, 1 they differ, 2 wrong usage.
    """
    with plain_errors("no checkpoint is half moved", checkpoint_code=1):
        from ..checkpoint import diff
        from ..checkpoint.diff_text import describe_diff

        report = diff(a, b, limits=_limits(max_seconds, max_memory))
        if html is not None:
            from ..report.diff_page import render_diff

            html.write_text(render_diff(json.loads(report.to_json())), encoding="utf-8")
        if as_json:
            typer.echo(report.to_json())
        else:
            _print_lines(describe_diff(report, verbose=verbose))
        raise typer.Exit(0 if report.is_same else 1)


def _watch(
    paths: list[str],
    is_asked: bool,
    interval: float,
    on_bad: str | None,
    last_good: Path | None,
    limits: Limits,
) -> int:
    from ..errors import UsageError
    from .scan_watch import watch_folder

    if not is_asked:
        raise UsageError("`--on-bad` and `--last-good` go with `--watch`")
    if len(paths) != 1:
        raise UsageError(f"`--watch` follows one folder, got {len(paths)} paths")
    return watch_folder(
        paths[0], interval=interval, on_bad=on_bad, pointer=last_good, limits=limits
    )


def _wanted_rate(config: Path | None, lr: float | None) -> tuple[float | None, str]:
    from ..errors import UsageError

    if config is not None and lr is not None:
        raise UsageError("give either --config or --lr, not both")
    if lr is not None:
        if not lr > 0:
            raise UsageError(f"`--lr` must be above 0, got {lr:g}")
        return lr, "--lr"
    if config is None:
        return None, ""
    from ..checkpoint import read_config_rate

    value, key = read_config_rate(config)
    return value, f"{config} ({key})"


def _limits(max_seconds: float, max_memory: int) -> Limits:
    from ..checkpoint import Limits
    from ..errors import UsageError

    if not max_seconds > 0 or max_memory < 1:
        raise UsageError("`--max-seconds` and `--max-memory` must be above 0")
    return Limits(max_seconds=max_seconds, max_memory=max_memory << 20)


def _scan_with_bar(
    paths: list[str],
    lr: float | None,
    source: str,
    ranges: bool,
    full: bool,
    verify: bool,
    jobs: int | None,
    limits: Limits,
    ray: str | None,
) -> ScanReport:
    """Scan with a progress bar if stderr is a terminal."""
    from ..checkpoint import Progress, scan

    progress = Progress()
    with _no_collector(), _bar(progress) if sys.stderr.isatty() else contextlib.nullcontext():
        return scan(
            list(paths),
            lr=lr,
            lr_source=source,
            ranges=ranges,
            full=full,
            verify=verify,
            jobs=jobs,
            progress=progress,
            limits=limits,
            keep_partial=True,
            ray=ray,
        )


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """What a scan builds has no cycles; looking for some doubles the time of 200,000 tensors."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def _bar(progress: Progress) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    columns: list[Any] = [
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    ]
    done = threading.Event()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("scanning", total=None)

        def follow() -> None:
            while not done.wait(0.1):
                label = f"{progress.phase} {progress.done_files}/{progress.num_files}"
                bar.update(
                    task,
                    completed=progress.done_bytes,
                    total=progress.total_bytes or None,
                    description=label,
                )

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _print_report(report: ScanReport, as_json: bool, verbose: bool) -> None:
    if as_json:
        typer.echo(report.to_json())
        return
    from ..checkpoint.text import describe_scan

    _print_lines(describe_scan(report, verbose=verbose))


def _print_lines(lines: Iterator[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        text = Text(line)
        for pattern, style in _COLORS:
            text.highlight_regex(pattern, style)
        console.print(text)


def _quarantine(report: ScanReport, folder: Path, yes: bool, quiet: bool) -> None:
    from ..checkpoint import move, plan_quarantine

    moves = plan_quarantine(report.checkpoints, folder)
    if not moves:
        typer.echo("nothing to put into quarantine", err=quiet)
        return
    typer.echo(f"into quarantine in {moves[0].log.parent}:", err=quiet)
    for step in moves:
        typer.echo(f"  {printable(str(step.source))}  ({step.verdict})", err=quiet)
    if not yes and not typer.confirm(f"Move {len(moves)}?", err=quiet):
        typer.echo("nothing was moved", err=quiet)
        return
    log = move(moves)
    typer.echo(f"moved {len(moves)}; to undo it: stayfinite scan --undo {log}", err=quiet)


def _undo(log: Path) -> None:
    from ..checkpoint import undo

    moved = undo(log)
    for path in moved:
        typer.echo(f"  back: {printable(str(path))}")
    typer.echo(f"moved {len(moved)} back" if moved else "nothing to move back: all is in its place")
