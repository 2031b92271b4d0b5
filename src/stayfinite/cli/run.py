"""`stayfinite run train.py …`: runs a script unchanged, under the guard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .run_options import RunOptions, prepare
from .script_command import ScriptCommand

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `run` to the command line."""
    # The first word that is no option is the script; whatever follows is the script's own.
    settings = {"allow_interspersed_args": False}
    app.command(
        "run",
        cls=ScriptCommand,
        context_settings=settings,
        short_help="Train under protection, script unchanged.",
    )(run)


Target = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCRIPT [ARGS]...",
        help="The training script and its own arguments.",
        show_default=False,
    ),
]
Module = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--module",
        metavar="MODULE",
        help="Run a module instead of a script, as `python -m` does.",
    ),
]
WhatPolicy = Annotated[
    str,
    typer.Option(
        metavar="POLICY",
        help="What to do about a bad step: auto (skip bad batches; stop if the weights have diverged), "
        "heal (if they have diverged, continue from the last healthy state with a proved setting), skip, "
        "rollback, sanitize (drop bad samples), parts (drop the bad part of a summed loss; one rank "
        "only), raise, or a ladder such as skip:3,rollback:2:lr=0.5:next=4.",
    ),
]
OnSpike = Annotated[
    str,
    typer.Option(
        metavar="WHAT",
        help="What to do about a spike of the loss or gradient norm: ignore, warn, skip, rollback "
        "or raise.",
    ),
]
RunDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where the journal and the incidents go. Default: stayfinite-runs/<script>-<time>.",
    ),
]
MaxSkips = Annotated[
    int, typer.Option(metavar="N", help="Skipped steps in a row after which the run stops.")
]
Overhead = Annotated[
    float,
    typer.Option(metavar="SHARE", help="Share of step time for deep checks and snapshots."),
]
FormerOverhead = Annotated[float | None, typer.Option("--budget", metavar="SHARE", hidden=True)]
Deferred = Annotated[
    bool,
    typer.Option(
        "--deferred",
        help="Never wait for the device; read the result of a check one step later.",
    ),
]
ResumeCheck = Annotated[
    bool, typer.Option(help="Refuse to restore a corrupt checkpoint; compare its learning rate.")
]
Diagnose = Annotated[bool, typer.Option(help="Look for the cause and try fixes.")]
HowReplayed = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="How a bad step is replayed: auto (only statements without side effects), full (also "
        "statements with side effects, in a sandbox), off.",
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A YAML file of stages: the criteria of each (loss, a figure that the script prints, "
        "incidents) and the settings it changes. A run folder that is used again continues in its stage.",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PART",
        help="Turn a part off: training, loaders, saves, provenance, processes, plan. Can be repeated.",
    ),
]
ShowPatches = Annotated[
    bool,
    typer.Option("--show-patches", help="Print what is patched in the script's process, and why."),
]
StoreArgs = Annotated[
    bool,
    typer.Option(
        "--store-args",
        help="Store the script's arguments unchanged. Default: without anything that looks like a "
        "password, key or token.",
    ),
]
Sinks = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SINK",
        help="Also write to tensorboard[:DIR], wandb[:DIR], mlflow[:DIR] or logging. Can be repeated.",
    ),
]
OnIncident = Annotated[
    str | None,
    typer.Option(
        metavar="CMD",
        help="Run this command, or POST to this http(s) address, with the incident's JSON.",
    ),
]


def run(
    target: Target = None,
    module: Module = None,
    policy: WhatPolicy = RunOptions.policy,
    on_spike: OnSpike = RunOptions.on_spike,
    run_dir: RunDir = None,
    max_skips: MaxSkips = RunOptions.max_skips,
    overhead: Overhead = RunOptions.overhead,
    budget: FormerOverhead = None,
    deferred: Deferred = False,
    resume_check: ResumeCheck = True,
    diagnose: Diagnose = True,
    replay: HowReplayed = RunOptions.replay,
    plan: PlanFile = None,
    without: Without = None,
    show_patches: ShowPatches = False,
    store_args: StoreArgs = False,
    sink: Sinks = None,
    on_incident: OnIncident = None,
) -> None:
    """Train under protection, with nothing changed in the script.

    Everything after SCRIPT (or after -m MODULE) is passed to the script. The exit code is the
    script's own.
    """
    from ..errors import UsageError

    given = RunOptions(
        target=tuple(target or ()), module=module, policy=policy, on_spike=on_spike, run_dir=run_dir,
        max_skips=max_skips, overhead=overhead if budget is None else budget, deferred=deferred,
        resume_check=resume_check, diagnose=diagnose, replay=replay, plan=plan, without=tuple(without or ()),
        show_patches=show_patches, store_args=store_args, sink=tuple(sink or ()),
        on_incident=on_incident,
    )  # fmt: skip
    try:
        start = prepare(given)
    except UsageError as e:
        raise typer.BadParameter(str(e)) from e
    try:
        code = start()
    except KeyboardInterrupt:
        code = 130  # this command line answers no other way
    raise typer.Exit(code)
