"""`stayfinite ladder … -- train.py …`: which single change gets past the failing step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import StayfiniteError, UsageError
from .plain import printable
from .script_command import ScriptCommand

__all__ = ["register"]

_INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add `ladder` to the command line."""
    # The first word that is no option is the script; whatever follows is the script's own.
    settings = {"allow_interspersed_args": False}
    app.command(
        name="ladder",
        cls=ScriptCommand,
        context_settings=settings,
        short_help="Find the change that gets past a failure.",
    )(ladder_command)


Script = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[--] SCRIPT [ARGS]...",
        help="The training script and its own arguments.",
        show_default=False,
    ),
]
Module = Annotated[
    str | None,
    typer.Option(
        "-m", "--module", metavar="MODULE", help="Run a module instead, as `python -m` does."
    ),
]
Tries = Annotated[
    list[str] | None,
    typer.Option(
        "--try",
        metavar="KEY=VALUE",
        help="A change: a flag or config key of the script (lr=1e-4, lr=0.1x, use_amp=false), "
        "env:NAME=VALUE, or one of our own knobs (stayfinite:autocast=off). Can be repeated. "
        " Default: the usual changes that the script allows.",
    ),
]
UntilStep = Annotated[
    int | None,
    typer.Option(
        metavar="STEP", help="Stop if the unchanged run has not failed by this step (from 0)."
    ),
]
AfterIncident = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="An incident of `stayfinite run` with the failing step. Only the script that you name is "
        "run.",
    ),
]
Margin = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        help="Steps past the failing one that a change must finish. Default: 5, or a tenth of "
        "the failing step if that is more.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Look for config keys in this file only (.yaml .json .toml .py)."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", help="Parallel runs. Default: one per core, up to 4; 1 on a GPU."),
]
RunDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep the output and files of every run in this new folder."),
]


def ladder_command(
    target: Script = None,
    module: Module = None,
    tries: Tries = None,
    until_step: UntilStep = None,
    after_incident: AfterIncident = None,
    margin: Margin = None,
    config: Config = None,
    jobs: Jobs = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time limit for each run.")
    ] = 3600.0,
    run_dir: RunDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Run a failing training again with one change each: which one survives?

    Nothing of yours is changed on disk: config files are changed in a copy, and what the script
    writes is redirected. Exit code: 0 a change survives or nothing fails, 1 none survives, 2 wrong
    usage.
    """  # fmt: skip
    from ..ladder import Plan, climb
    from ..ladder.progress import Progress
    from ..ladder.render import render

    try:
        known, words = _incident(after_incident, _script_words(target or [], module))
        is_module = words[:1] == ["-m"]
        words = words[is_module:]
        if not words:
            raise UsageError(
                "give the script to run: stayfinite ladder --try lr=0.1x -- train.py [ARGS]..."
            )
        plan = Plan(
            target=words[0], args=tuple(words[1:]), is_module=is_module, tries=tuple(tries or ()),
            config=str(config) if config is not None else None, until_step=until_step,
            failing_step=known, margin=margin, jobs=jobs, timeout_s=timeout, run_dir=run_dir,
        )  # fmt: skip
        report = climb(plan, Progress())
    except StayfiniteError as e:
        print(f"stayfinite ladder: {printable(str(e))}", file=sys.stderr)
        raise typer.Exit(2) from e
    except KeyboardInterrupt:
        print("stayfinite ladder: interrupted; all runs are ended", file=sys.stderr)
        raise typer.Exit(_INTERRUPTED) from None
    typer.echo(report.to_json() if as_json else render(report))
    raise typer.Exit(report.exit_code)


def _script_words(words: list[str], module: str | None) -> list[str]:
    """The script's command line as `python` would be given it.

    >>> _script_words(["--", "--lr", "3"], "pkg.train")
    ['-m', 'pkg.train', '--lr', '3']
    """
    if module is None:
        return words
    return ["-m", module, *words[words[:1] == ["--"] :]]


def _incident(folder: Path | None, words: list[str]) -> tuple[int | None, list[str]]:
    """(the step of the incident, the script and its arguments as the user gave them)."""
    if folder is None:
        return None, words
    from ..report.reading import read_incident

    incident, home = read_incident(folder)
    if words:
        return incident.event.step, words
    raise UsageError(
        f"give the script to run\n{_recorded_command(home)}"
        "nothing of that was run: an incident is data that somebody may have sent\n"
        "  try: stayfinite ladder --after-incident DIR -- train.py [ARGS]..."
    )


def _recorded_command(home: Path) -> str:
    """What the incident says was run, for people to judge."""
    from ..investigate.capsule import load_capsule, recorded_command

    try:
        recorded = recorded_command(load_capsule(home))
    except StayfiniteError:
        return ""
    return f"the incident says that this was run: {recorded}\n" if recorded else ""
