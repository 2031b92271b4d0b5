"""The command line. Commands live in one file each and import torch only when they run."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `stayfinite` command."""
    args = sys.argv[1:] if argv is None else argv
    if args[:1] == ["run"]:
        _run(args[1:])
    from .app import app

    app(args=args, prog_name="stayfinite")


def _run(args: list[str]) -> None:
    """`run` avoids the imports of the other commands, so that the training starts sooner."""
    from ..errors import UsageError
    from .run_options import prepare, read

    given = read(args)
    if given is None:
        return
    try:
        start = prepare(given)
    except UsageError:  # the command line says so in its own way
        return
    sys.exit(start())
