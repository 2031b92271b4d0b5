"""`stayfinite report RUN`: a run as one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .newest_run import newest_run, with_journal

if TYPE_CHECKING:
    from ..report.model import RunView

__all__ = ["KeyNames", "register"]

_FORMATS = ("html", "md", "json")


def register(app: typer.Typer) -> None:
    app.command("report", short_help="Write a run as one HTML page.")(report)


Run = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN",
        help="A run folder, a .jsonl log, or one incident's folder. Default: the newest run in "
        "stayfinite-runs.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Output file; '-' prints it. Default: in the run folder.",
    ),
]
Format = Annotated[str, typer.Option("--format", metavar="FORM", help="html, md or json.")]
Png = Annotated[
    Path | None,
    typer.Option(
        "--png", metavar="DIR", help="Also write the plots as PNG files into this folder."
    ),
]
KeyNames = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="FIELD=KEY",
        help="Names of the keys in another tool's log: loss=total, step=n, ... Can be repeated.",
    ),
]
Session = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Which session of a folder that was used several times. Default: the last.",
    ),
]
Rank = Annotated[int, typer.Option(metavar="N", help="Which rank's journal of a distributed run.")]
Points = Annotated[
    int, typer.Option(metavar="N", min=10, help="How many points a curve has at most.")
]
MaxSeconds = Annotated[
    float, typer.Option(metavar="SECONDS", help="Processor time for reading the log.")
]
To = Annotated[
    list[str] | None,
    typer.Option(
        "--to",
        metavar="SINK",
        help="Also send to tensorboard[:DIR], wandb[:DIR], mlflow[:DIR] or logging. Can be repeated.",
    ),
]


def report(
    run: Run = None,
    output: Output = None,
    format: Format = "html",
    png: Png = None,
    map_: KeyNames = None,
    session: Session = None,
    rank: Rank = 0,
    points: Points = 2000,
    max_seconds: MaxSeconds = 10.0,
    to: To = None,
) -> None:
    """Write a run as one self-contained HTML page with its curves, incidents and layers.

    Reads the journal of a run, or any JSONL training log. Exit code: 0 done, 1 the log could not be
    read completely within --max-seconds, 2 wrong usage.
    """
    from ..errors import StayfiniteError
    from ..report.foreign import KeyMap
    from ..report.model import load_run

    if format not in _FORMATS:
        raise typer.BadParameter(f"--format must be one of {', '.join(_FORMATS)}, got {format!r}")
    try:
        keys = KeyMap.parse(map_ or ())
        run = run or newest_run(with_journal)
        view = load_run(
            run, session=session, keys=keys, points=points, rank=rank, max_seconds=max_seconds
        )
        text = _render(view, format)
        if png is not None:
            _write_plots(view, png)
        if to:
            from ..report.sinks import export

            export(run, view, to)
    except (StayfiniteError, OSError) as e:
        typer.echo(f"stayfinite report: {e}", err=True)
        raise typer.Exit(2) from e
    if view.data.cut:
        typer.echo(f"stayfinite report: {view.data.cut}\n  try: --max-seconds", err=True)
    code = 1 if view.data.cut else 0
    if str(output) == "-":
        typer.echo(text, nl=False)
        raise typer.Exit(code)
    target = output or _beside(run, format)
    try:
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as e:
        typer.echo(f"stayfinite report: cannot write {target}: {e.strerror}", err=True)
        raise typer.Exit(2) from e
    typer.echo(str(target))
    raise typer.Exit(code)


def _write_plots(view: RunView, folder: Path) -> None:
    """A missing package must not prevent the page."""
    from ..errors import MissingExtraError
    from ..report.png import write_pngs

    try:
        for path in write_pngs(view, folder):
            typer.echo(str(path), err=True)
    except MissingExtraError as e:
        typer.echo(f"stayfinite report: {e}; the page is written without them", err=True)


def _render(view: object, format: str) -> str:
    from ..report.html import render_html
    from ..report.markdown import render_markdown
    from ..report.model import RunView

    assert isinstance(view, RunView)
    if format == "json":
        return json.dumps(view.to_plain(), indent=1, allow_nan=False) + "\n"
    return render_markdown(view) if format == "md" else render_html(view)


def _beside(run: Path, format: str) -> Path:
    if run.is_dir():
        return run / f"report.{format}"
    return run.with_name(f"{run.stem}-report.{format}")
