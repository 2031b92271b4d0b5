"""All commands together."""

from __future__ import annotations

import typer

from .. import __version__
from . import check, demo, fix, ladder, lint, replay, report, run, scan, watch

__all__ = ["app"]

app = typer.Typer(
    name="stayfinite",
    help="Keeps a PyTorch training run finite: catches the first NaN or Inf, names the operator, "
    "module and line that made it, says why and what to change, and goes on training.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"stayfinite {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """What all commands share."""


for module in (run, scan, check, lint, fix, replay, ladder, watch, report, demo):
    module.register(app)
