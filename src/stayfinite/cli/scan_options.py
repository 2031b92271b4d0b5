"""The options of `stayfinite scan`, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Files, folders, globs or addresses.", show_default=False),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Compare the saved learning rates with this config (.json .yaml .toml .py).",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(metavar="RATE", help="Compare the saved learning rates with this one."),
]
Quarantine = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Move corrupt, hostile and unreadable checkpoints into DIR."),
]
Undo = Annotated[
    Path | None,
    typer.Option(metavar="LOG", help="Undo the quarantine with this log."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Move without asking.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 for suspicious files too.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
Full = Annotated[
    bool, typer.Option("--full", help="Also count zeros and subnormals of every tensor.")
]
Checksums = Annotated[
    bool, typer.Option("--checksums", help="Also verify the checksums of archives (slower).")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", help="Files to scan in parallel. Default: one per core, up to 4."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="List every tensor and every finding.")
]
MaxSeconds = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", help="Processor time for each part of a file except tensor data."
    ),
]
MaxMemory = Annotated[
    int, typer.Option(metavar="MB", help="Megabytes of memory for one file, except mapped data.")
]
Watch = Annotated[
    bool,
    typer.Option("--watch", help="Follow a folder: judge each checkpoint once it is written."),
]
OnBad = Annotated[
    str | None,
    typer.Option(
        metavar="CMD",
        help="With --watch: run this for each bad checkpoint, with its JSON on standard input and "
        "its path in STAYFINITE_PATH.",
    ),
]
LastGood = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="With --watch: keep the last good checkpoint's path in this file."
    ),
]
Interval = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=0.05, help="With --watch: seconds between two polls."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS|local", help="Spread the files over the workers of a Ray cluster."
    ),
]
