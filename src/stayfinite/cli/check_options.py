"""The arguments and options of `stayfinite check`, with their help; some may also be given after TARGET."""

from __future__ import annotations

import argparse
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
    "take_late",
]

_CONFIGS = (".yaml", ".yml", ".json", ".toml", ".py")

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
Steps = Annotated[
    int, typer.Option(metavar="N", help="How many real steps the stability group takes.")
]
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
Seed = Annotated[int, typer.Option(metavar="N", help="Random seed for the target.")]
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


def take_late(words: list[str], given: argparse.Namespace) -> list[str]:
    """Move the options of ours that stand after TARGET from `words` to `given`; returns what is the script's own.

    `--` ends ours. A config that the script is given is the one to check, too.

    >>> given = argparse.Namespace(only=["init"], skip=[], json=False, config=None)
    >>> take_late(["train.py", "--lr", "0.1", "--only", "data", "--json"], given)
    ['train.py', '--lr', '0.1']
    >>> given.only, given.json
    (['init', 'data'], True)
    >>> take_late(["train.py", "--", "--json"], given)
    ['train.py', '--json']
    """
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    parser.add_argument("--only", action="append")
    parser.add_argument("--skip", action="append")
    for switch in ("--json", "--pedantic", "--prove"):
        parser.add_argument(switch, action="store_true")
    for file in ("--html", "--box"):
        parser.add_argument(file, type=Path)
    parser.add_argument("--preset")
    parser.add_argument("--budget", type=float)
    end = words.index("--") if "--" in words else len(words)
    _, rest = parser.parse_known_args(words[1:end], given)
    seen = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    seen.add_argument("--config", type=Path)
    config, others = seen.parse_known_args(rest)
    file = config.config
    is_config = file is not None and file.suffix in _CONFIGS
    if words and ":" in words[0] and is_config:  # a build function takes no arguments
        rest, given.config = others, given.config or file
    elif is_config and file.is_file():
        given.config = given.config or file
    return [*words[:1], *rest, *words[end + 1 :]]
