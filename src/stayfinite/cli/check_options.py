"""The arguments and options of `stayfinite check`, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "BoxFile",
    "Budget",
    "Config",
    "Data",
    "DataSamples",
    "Html",
    "Module",
    "Only",
    "Preset",
    "Prove",
    "Save",
    "Seed",
    "Skip",
    "Steps",
    "Target",
]

Target = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET [ARGS]...",
        help="A training script and its own arguments, or pkg.module:build (also file.py:build), a "
        "function that returns model, loss_fn, loader, optimizer.",
        show_default=False,
    ),
]
Module = Annotated[
    str | None,
    typer.Option(
        "-m", "--module", metavar="MODULE", help="Check a module instead, as `python -m` runs it."
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GROUPS",
        help="Only these groups: environment, config, data, init, forward, edges, precision, "
        "stability, resources, proof. Separate several with commas.",
    ),
]
Skip = Annotated[list[str] | None, typer.Option(metavar="GROUPS", help="Leave these groups out.")]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The training's config (.yaml, .json, .toml, .py): checked, and compared with the "
        "values in use. Python is parsed, never run.",
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Write a safer config next to the one of --config: conservative or very-conservative.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Also check this data file: npy, npz, safetensors, pt or csv."
    ),
]
DataSamples = Annotated[
    str | None,
    typer.Option(
        metavar="N|all", help="How many samples to check. Default: as many as fit 20 seconds."
    ),
]
Steps = Annotated[int, typer.Option(help="How many real steps the stability group takes.")]
Budget = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time for the search for breaking batches and the steps ahead. Default: about two seconds of "
        "computing, or the time of 40 steps.",
    ),
]
Save = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        help="Folder for batches that break the training, for `stayfinite replay`.",
    ),
]
Seed = Annotated[int, typer.Option(help="Random seed for the target.")]
Prove = Annotated[
    bool,
    typer.Option(
        "--prove",
        help="Also say for every line whether it can give NaN or Inf for any input in a box: safe, can "
        "fail (and when), or unknown. --only proof runs only this.",
    ),
]
BoxFile = Annotated[
    Path | None,
    typer.Option(
        "--box",
        metavar="FILE",
        help="The box as JSON: data ranges, weights, batch_sizes. Default: the ranges seen in the first "
        "batches.",
    ),
]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report as a page.")]
