"""The command line with all its commands."""

from __future__ import annotations

import typer

from .. import __version__
from . import check, demo, doctor, explain, fix, ladder, lint, replay, report, run, scan, watch
from .about import about

__all__ = ["app"]

app = typer.Typer(
    name="stayfinite",
    help="Keeps a PyTorch training run finite: catches the first NaN or Inf, names the operator, "
    "module and line that made it, says why and what to change, and goes on training.",
    no_args_is_help=True,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Show the version."),
    verbose: bool = typer.Option(
        False, "--verbose", help="With --version: what a bug report needs to say."
    ),
) -> None:
    """The options without a command."""
    if version and verbose:
        typer.echo(about())
        raise typer.Exit
    if version:
        typer.echo(f"stayfinite {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise typer.BadParameter("--verbose goes with --version; else give a command, see --help")


for module in (run, scan, check, lint, fix, replay, ladder, watch, report, explain, demo, doctor):
    module.register(app)
