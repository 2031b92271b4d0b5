"""The command line. Commands live in one file each and import torch only when they run."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `stayfinite` command."""
    args = sys.argv[1:] if argv is None else argv
    from .app import app

    app(args=args, prog_name="stayfinite")
