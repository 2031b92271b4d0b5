"""`stayfinite lint`: numerically unsafe source, in the terminal, in CI and for an editor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .plain import plain_errors

if TYPE_CHECKING:
    from ..lint import Report

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `lint` to the command line."""
    app.command(name="lint", short_help="Find and repair numerically unsafe source.")(lint_command)


def lint_command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Files or folders.", show_default=False),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Repair code that has an equivalent safe form.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show the repairs as a patch and write nothing.")
    ] = False,
    pedantic: Annotated[
        bool, typer.Option("--pedantic", help="Also report findings that are often harmless.")
    ] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODE", help="Only these codes (SF101) or families (SF1). Can be repeated."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="CODE", help="Not these codes or families. Can be repeated."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="FORM", help="text, json, sarif or github.")
    ] = "text",
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", metavar="N", help="Processes. Default: one for each core."),
    ] = None,
) -> None:
    """Numerically unsafe source, found and repaired without running it.

    Exit code: 0 clean, 1 something was found, 2 wrong usage.
    """
    with plain_errors("files are repaired one at a time, none is half written"):
        from ..errors import UsageError
        from ..lint import lint_paths, read_settings
        from ..lint.render import FORMATS

        if not paths:
            raise UsageError("nothing to check\ntry: stayfinite lint src")
        if form not in FORMATS:
            raise UsageError(f"`--format` must be one of {', '.join(FORMATS)}, got {form!r}")
        if jobs is not None and jobs < 1:
            raise UsageError(f"`--jobs` must be at least 1, got {jobs}")
        settings = read_settings(_project(paths), _codes(select), _codes(ignore), pedantic)
        report = lint_paths(paths, settings, jobs=jobs, fix=fix, diff=diff)
        typer.echo(FORMATS[form](report), nl=False)
        _print(report, form)
        raise typer.Exit(_exit_code(report, paths))


def _project(paths: list[str]) -> Path:
    """Where settings are searched first."""
    first = Path(paths[0])
    return first if first.is_dir() else first.parent


def _codes(given: list[str] | None) -> list[str]:
    return [code.strip() for text in given or [] for code in text.split(",") if code.strip()]


def _print(report: Report, form: str) -> None:
    """Print messages for people to stderr, because stdout may be parsed."""
    from ..lint.render import summary

    for unreadable in report.unreadable:
        typer.echo(f"could not read {unreadable.path}: {unreadable.reason}", err=True)
    typer.echo(summary(report), err=form != "text")


def _exit_code(report: Report, paths: list[str]) -> int:
    """A file that was named and could not be read is an error; one in a folder is a remark."""
    named = {str(Path(p)) for p in paths}
    if any(u.path in named for u in report.unreadable):
        return 2
    return report.exit_code
