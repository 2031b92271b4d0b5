"""`stayfinite demo`: a small broken training, caught and explained, with nothing to download."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo() -> None:
    """Run a small broken training twice: plainly, then under stayfinite."""
    script = Path(__file__).parents[1] / "demo" / "attention.py"
    typer.echo(f"A small text classifier: {script.name}. First as it is, plainly:\n")
    typer.echo(f"$ python {script.name}")
    subprocess.run([sys.executable, str(script)], check=False)
    typer.echo("\nThe loss is NaN from some step on, and nothing says where or why.")
    typer.echo("Now the same file, unchanged, under stayfinite:\n")
    typer.echo(f"$ stayfinite run {script.name}")
    folder = Path(".demo")
    done = subprocess.run(
        [sys.executable, "-m", "stayfinite", "run", "--run-dir", str(folder), str(script)],
        check=False,
    )
    typer.echo("\nThe training went on and its loss is a number.")
    typer.echo(f"The incident, as JSON and as text: {folder / 'incidents'}")
    raise typer.Exit(done.returncode)
