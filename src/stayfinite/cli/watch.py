"""`stayfinite watch RUN`: the run, live in the terminal or in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .newest_run import newest_run, with_journal
from .report import KeyNames

if TYPE_CHECKING:
    from ..report.foreign import KeyMap

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("watch", short_help="Watch a run live, in the terminal or browser.")(watch)


Run = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN",
        help="A run folder or a .jsonl log, growing or finished. Default: the newest run in "
        "stayfinite-runs.",
        show_default=False,
    ),
]
Interval = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.05, help="Seconds between two updates.")
]
Once = Annotated[bool, typer.Option("--once", help="Print one picture and exit.")]
Web = Annotated[
    bool, typer.Option("--web", help="Watch in a browser instead; prints a local address.")
]
Port = Annotated[
    int,
    typer.Option(metavar="N", min=0, max=65535, help="With --web: the port; 0 takes a free one."),
]
MaxSeconds = Annotated[
    float, typer.Option(metavar="SECONDS", help="Processor time for reading the log once.")
]


def watch(
    run: Run = None,
    interval: Interval = 0.5,
    once: Once = False,
    web: Web = False,
    port: Port = 0,
    max_seconds: MaxSeconds = 10.0,
    map_: KeyNames = None,
) -> None:
    """Show loss, gradient norm, learning rate, scale, layers and incidents live; q quits.

    With --web, serve the page of `stayfinite report` to a browser and keep it up to date.
    """
    from ..errors import StayfiniteError
    from ..report.foreign import KeyMap
    from ..report.watch import watch as show

    try:
        _no_contradiction(web, once, port)
        keys = KeyMap.parse(map_ or ())
        run = run or newest_run(with_journal)
        if not run.exists():
            typer.echo(
                f"stayfinite watch: no such run: {run}\n  try: a run folder, or a .jsonl log",
                err=True,
            )
            raise typer.Exit(2)
        if web:
            return _serve(run, port, interval, keys, max_seconds)
        seen = show(run, interval, once, keys, max_seconds)
    except StayfiniteError as e:
        typer.echo(f"stayfinite watch: {e}", err=True)
        raise typer.Exit(2) from e
    if seen.cut:
        typer.echo(f"stayfinite watch: {seen.cut}\n  try: --max-seconds", err=True)
        raise typer.Exit(1)


def _no_contradiction(web: bool, once: bool, port: int) -> None:
    from ..errors import UsageError

    if web and once:
        raise UsageError("`--once` prints one picture in the terminal; leave out `--web`")
    if port and not web:
        raise UsageError("`--port` goes with `--web`")


def _serve(run: Path, port: int, interval: float, keys: KeyMap, max_seconds: float) -> None:
    from ..report.live import LiveServer

    server = LiveServer(run, port=port, interval=interval, keys=keys, max_seconds=max_seconds)
    try:
        typer.echo(
            "stayfinite watch: only this machine reaches it, and only with the token; Ctrl-C ends",
            err=True,
        )
        typer.echo(server.address)
        server.serve()
    except KeyboardInterrupt:
        pass
    finally:
        server.release()
