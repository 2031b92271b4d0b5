"""`stayfinite scan --watch DIR`: judges each checkpoint of a training as it appears."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..errors import UsageError
from .plain import printable

if TYPE_CHECKING:
    from ..checkpoint import CheckpointReport, Limits

__all__ = ["watch_folder"]

_COMMAND_SECONDS = 600.0


def watch_folder(
    folder: str,
    *,
    interval: float,
    on_bad: str | None,
    pointer: Path | None,
    limits: Limits,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Follow the folder until an interrupt; 1 when a checkpoint was bad."""
    from ..checkpoint.follow import Follower, write_pointer

    command = shlex.split(on_bad) if on_bad is not None else []
    if on_bad is not None and not command:
        raise UsageError("`--on-bad` needs a command")
    follower = Follower(folder, limits=limits)
    typer.echo(f"following {printable(folder)}; Ctrl-C ends it")
    last: str | None = None
    try:
        while True:
            for report in follower.poll():
                _print(report)
                if not report.is_usable and command:
                    _run(command, report)
            if follower.last_good != last:
                last = follower.last_good
                typer.echo(f"last good: {printable(last or 'none')}")
                if pointer is not None:
                    write_pointer(pointer, last)
            sleep(interval)
    except KeyboardInterrupt:
        typer.echo(f"\n{follower.num_bad} bad; last good: {printable(last or 'none')}")
    return 1 if follower.num_bad else 0


def _print(report: CheckpointReport) -> None:
    from ..checkpoint import ScanReport
    from ..checkpoint.text import describe_scan

    for line in list(describe_scan(ScanReport(checkpoints=(report,))))[:-2]:
        typer.echo(line)


def _run(command: list[str], report: CheckpointReport) -> None:
    """The user's command; what the file is called goes in as data, never into a shell."""
    from ..plain import to_plain

    findings = [*report.findings, *(f for r in report.files for f in r.findings)]
    message = {
        "path": report.path,
        "verdict": report.verdict,
        "step": report.step,
        "findings": [to_plain(f) for f in findings[:100]],
    }
    env = {**os.environ, "STAYFINITE_PATH": report.path, "STAYFINITE_VERDICT": report.verdict}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(message),
            text=True,
            env=env,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        typer.echo(f"--on-bad: {e}", err=True)
        return
    if done.returncode:
        typer.echo(f"--on-bad: {command[0]} ended with exit code {done.returncode}", err=True)
