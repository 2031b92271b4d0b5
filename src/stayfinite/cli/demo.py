"""`stayfinite demo`: real trainings that break, caught and explained, with nothing to download."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import typer

if TYPE_CHECKING:
    from ..demo.show import Show

__all__ = ["register"]

_HOME = Path(".demo")


def register(app: typer.Typer) -> None:
    app.command("demo", short_help="Show a broken training, caught and repaired.")(demo)


def demo(
    name: Optional[str] = typer.Argument(  # noqa: UP045 - typer reads it
        None, metavar="NAME", help="Which one to run. Without it, all are listed."
    ),
) -> None:
    """Run a broken training as it is, then under stayfinite, then with the fix.

    Everything that it writes goes to .demo/NAME.
    """
    from ..demo.cases import cases, find
    from ..errors import UsageError

    try:
        if name is None:
            _list([(case.name, case.title) for case in cases().values()])
            return
        case = find(name)
        missing = case.missing()
        if missing:
            needed = " and ".join(missing)
            raise UsageError(
                f"{name} needs {needed}, not installed here\n  try: pip install {' '.join(missing)}"
            )
    except UsageError as e:
        typer.echo(f"stayfinite demo: {e}", err=True)
        raise typer.Exit(2) from e
    from ..demo.show import Show

    started = time.monotonic()
    typer.echo(f"{case.name}: {case.title}\n")
    show = Show(case, _HOME / case.name, typer.echo)
    try:
        show.run()
        page = _page(show)
    except OSError as e:
        typer.echo(f"stayfinite demo: cannot write {e.filename}: {e.strerror}", err=True)
        raise typer.Exit(2) from e
    _close(show, page, time.monotonic() - started)
    raise typer.Exit(1 if show.disappointments else 0)


def _list(rows: list[tuple[str, str]]) -> None:
    typer.echo("Trainings that break. `stayfinite demo NAME` runs one as it is, then under")
    typer.echo("stayfinite, then with the fix.\n")
    width = max(len(name) for name, _ in rows)
    for name, title in rows:
        typer.echo(f"  {name:<{width}}  {title}")


def _page(show: Show) -> Path | None:
    """The run as one page; None if it left no journal."""
    from ..errors import StayfiniteError
    from ..report.html import render_html
    from ..report.model import load_run

    try:
        view = load_run(show.run_dir)
        text = render_html(view)
    except StayfiniteError as e:
        show.disappointments.append(f"no report: {e}")
        return None
    show.warnings = [str(e["text"]) for e in view.data.events if e.get("about") == "untrained"]
    page = show.run_dir / "report.html"
    page.write_text(text, encoding="utf-8", errors="backslashreplace")
    return page


def _counted(step: int, counters: Mapping[str, int]) -> str:
    """Our step, and the script's own number if it differs.

    >>> _counted(153, {"epoch": 0, "step": 76}), _counted(15, {"epoch": 0, "batch": 15})
    ('153 (in the script step = 76)', '15')
    """
    own = [f"{n} = {v}" for n, v in counters.items() if n != "epoch" and v != step]
    return f"{step} (in the script {', '.join(own)})" if own else str(step)


def _close(show: Show, page: Path | None, seconds: float) -> None:
    typer.echo("\nin short")
    incident = show.incident
    if incident is not None:
        where = incident.location
        file = Path(where.file).name if where.file else "?"
        step = _counted(incident.event.step, incident.event.counters)
        typer.echo(f"  caught    step {step}: {incident.diagnosis.cause}")
        typer.echo(f"  at        {file}:{where.line}  {(where.source or '').strip()}")
        typer.echo(f"  incident  {show.run_dir / 'incidents' / incident.id}/incident.txt")
    for other in show.others:
        place = f"{Path(other.location.file or '?').name}:{other.location.line}"
        typer.echo(f"  also      step {other.event.step}: {other.diagnosis.cause} at {place}")
    for text in show.warnings:
        typer.echo(f"  also      {text.partition(';')[0]}")
    typer.echo(f"  fixed     {show.last_line}")
    if page is not None:
        typer.echo(f"  report    {page}  (open it in a browser)")
    typer.echo(f"  time      {seconds:.0f} s")
    for text in show.disappointments:
        typer.echo(f"stayfinite demo: unexpected: {text}", err=True)
