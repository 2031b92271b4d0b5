"""`stayfinite run train.py …`: runs a script unchanged, under the guard."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

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


def run(
    target: Optional[list[str]] = typer.Argument(  # noqa: UP045 - typer reads it
        None, metavar="SCRIPT [ARGS]...", help="The training script and its own arguments."
    ),
    module: Optional[str] = typer.Option(  # noqa: UP045
        None,
        "-m",
        "--module",
        metavar="MODULE",
        help="Run a module instead of a script, as `python -m` does.",
    ),
    policy: str = typer.Option(
        RunOptions.policy,
        metavar="POLICY",
        help="What to do about a bad step: auto (skip bad batches; stop if the weights have diverged), "
        "heal (if they have diverged, continue from the last healthy state with a proved setting), skip, "
        "rollback, sanitize (drop bad samples), parts (drop the bad part of a summed loss; one rank "
        "only), raise, or a ladder such as skip:3,rollback:2:lr=0.5:next=4.",
    ),
    on_spike: str = typer.Option(
        RunOptions.on_spike,
        metavar="WHAT",
        help="What to do about a spike of the loss or gradient norm: ignore, warn, skip, rollback "
        "or raise.",
    ),
    run_dir: Optional[Path] = typer.Option(  # noqa: UP045
        None,
        help="Where the journal and the incidents go. Default: stayfinite-runs/<script>-<time>.",
    ),
    max_skips: int = typer.Option(
        RunOptions.max_skips, help="Skipped steps in a row after which the run stops."
    ),
    budget: float = typer.Option(
        RunOptions.budget, help="Share of step time for deep checks and snapshots."
    ),
    deferred: bool = typer.Option(
        False,
        "--deferred",
        help="Never wait for the device; read the result of a check one step later.",
    ),
    resume_check: bool = typer.Option(
        True, help="Refuse to restore a corrupt checkpoint; compare its learning rate."
    ),
    diagnose: bool = typer.Option(True, help="Look for the cause and try fixes."),
    replay: str = typer.Option(
        RunOptions.replay,
        metavar="HOW",
        help="How a bad step is replayed: auto (only statements without side effects), full (also "
        "statements with side effects, in a sandbox), off.",
    ),
    plan: Optional[Path] = typer.Option(  # noqa: UP045
        None,
        metavar="FILE",
        help="A YAML file of stages: the criteria of each (loss, a figure that the script prints, "
        "incidents) and the settings it changes. A run folder that is used again continues in its stage.",
    ),
    without: Optional[list[str]] = typer.Option(  # noqa: UP045
        None,
        metavar="PART",
        help="Turn a part off: training, loaders, saves, provenance, processes, plan.",
    ),
    show_patches: bool = typer.Option(
        False, "--show-patches", help="Print what is patched in the script's process, and why."
    ),
    store_args: bool = typer.Option(
        False,
        "--store-args",
        help="Store the script's arguments unchanged. Default: without anything that looks like a "
        "password, key or token.",
    ),
    sink: Optional[list[str]] = typer.Option(  # noqa: UP045
        None, help="Also write to tensorboard[:DIR], wandb[:DIR], mlflow[:DIR] or logging."
    ),
    on_incident: Optional[str] = typer.Option(  # noqa: UP045
        None,
        metavar="CMD",
        help="Run this command, or POST to this http(s) address, with the incident's JSON.",
    ),
) -> None:
    """Train under protection, with nothing changed in the script.

    Everything after SCRIPT (or after -m MODULE) is passed to the script. The exit code is the
    script's own.
    """
    from ..errors import UsageError

    given = RunOptions(
        target=tuple(target or ()), module=module, policy=policy, on_spike=on_spike, run_dir=run_dir,
        max_skips=max_skips, budget=budget, deferred=deferred, resume_check=resume_check,
        diagnose=diagnose, replay=replay, plan=plan, without=tuple(without or ()),
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
