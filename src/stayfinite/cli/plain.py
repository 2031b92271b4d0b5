"""Ends a command with a plain message on stderr instead of a traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer

from ..report.reading import printable

__all__ = ["plain_errors", "printable"]

_INTERRUPTED = 130


@contextlib.contextmanager
def plain_errors(when_interrupted: str, checkpoint_code: int = 2) -> Iterator[None]:
    """Turn expected errors into a message and exit code 2; `checkpoint_code` for a bad checkpoint."""
    from ..errors import CheckpointError, StayfiniteError

    try:
        yield
    except StayfiniteError as e:
        typer.echo(f"error: {printable(str(e))}", err=True)
        raise typer.Exit(checkpoint_code if isinstance(e, CheckpointError) else 2) from None
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {when_interrupted}", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    except BrokenPipeError:
        raise  # whoever reads the output has seen enough; click ends without a word
    except OSError as e:
        where = f"cannot use {printable(str(e.filename))}: " if e.filename else ""
        typer.echo(f"error: {where}{e.strerror or e}", err=True)
        raise typer.Exit(2) from None
