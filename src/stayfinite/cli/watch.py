"""`stayfinite watch RUN`: the run, live in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("watch")(watch)


def watch(
    run: Path = typer.Argument(
        ..., metavar="RUN", help="A run folder or a .jsonl log, growing or finished."
    ),
    interval: float = typer.Option(0.5, min=0.05, help="Seconds between two looks."),
    once: bool = typer.Option(False, "--once", help="Print one picture and exit."),
    max_seconds: float = typer.Option(10.0, help="Processor time for one look at the log."),
    map_: Optional[list[str]] = typer.Option(  # noqa: UP045 - typer reads it
        None,
        "--map",
        metavar="FIELD=KEY",
        help="Which key of a foreign log is which: loss=total, step=n, ...",
    ),
) -> None:
    """Loss, gradient norm, learning rate, scale, layers and incidents as they come; q quits."""
    from ..errors import StayfiniteError
    from ..report.foreign import KeyMap
    from ..report.watch import watch as show

    try:
        keys = KeyMap.parse(map_ or ())
        if not run.exists():
            typer.echo(
                f"stayfinite watch: no such run: {run}\n  try: a run folder, or a .jsonl log",
                err=True,
            )
            raise typer.Exit(2)
        seen = show(run, interval, once, keys, max_seconds)
    except StayfiniteError as e:
        typer.echo(f"stayfinite watch: {e}", err=True)
        raise typer.Exit(2) from e
    if seen.cut:
        typer.echo(f"stayfinite watch: {seen.cut}\n  try: --max-seconds", err=True)
        raise typer.Exit(1)
