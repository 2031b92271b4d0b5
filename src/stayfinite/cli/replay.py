"""`stayfinite replay INCIDENT`: runs the failed step again in a new process."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import StayfiniteError, UsageError
from .plain import printable

if TYPE_CHECKING:
    from ..records import Incident

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `replay` to the command line."""
    app.command(name="replay", short_help="Reproduce a saved incident, try fixes again.")(
        replay_command
    )


def replay_command(
    incident: Annotated[
        Path,
        typer.Argument(metavar="INCIDENT", help="The incident's folder, or its incident.json."),
    ],
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- SCRIPT [ARGS]...]",
            help="Your training script and its arguments. The command stored in an incident is shown but "
            "never run, since the file may come from somebody else.",
            show_default=False,
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "-m", "--module", metavar="MODULE", help="Run a module instead, as `python -m` does."
        ),
    ] = None,
    build: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="For a Guard in your own code: a function that returns model, loss_fn, optimizer [, scheduler, scaler]; also as train.py:build.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time limit for the experiments.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the incident as JSON.")] = False,
) -> None:
    """Reproduce a saved incident, bisect it to single samples and try the fixes again.

    stayfinite replay INCIDENT -- train.py [ARGS]...

    Exit code: 1 the step failed again, 0 it was finite, 2 wrong usage.
    """
    script = [*([module] if module else []), *(target or [])]
    try:
        if module is None and script and Path(script[0]).is_dir():
            raise UsageError(
                f"one incident at a time, then your script: {script[0]} is a folder\n"
                f"  try: stayfinite replay {incident} -- train.py [ARGS]..."
            )
        found = run_replay(incident, script, build, seconds, is_module=module is not None)
    except StayfiniteError as e:
        print(f"stayfinite replay: {printable(str(e))}", file=sys.stderr)
        raise typer.Exit(2) from e
    old, new = found
    if new is None:
        typer.echo(_finite(old))
        raise typer.Exit(0)
    from ..report.text import render

    new = replace(new, path=_kept(incident, old))
    typer.echo(new.to_json() if as_json else f"{_compared(old, new)}\n\n{render(new)}")
    raise typer.Exit(1)


def _kept(given: Path, old: Incident) -> str | None:
    """Where `fix` finds the change: the replay's own folder is gone by now."""
    has_diff = any(f.status == "proved" for f in old.diagnosis.fixes)
    return str(given if given.is_dir() else given.parent) if has_diff else None


def run_replay(
    path: Path, script: list[str], build: str | None, seconds: float, is_module: bool = False
) -> tuple[Incident, Incident | None]:
    """(the saved incident, the new one or None if the step is finite now)."""
    import torch

    from ..config import Settings
    from ..guard import Guard
    from ..investigate.capsule import load_capsule, load_into
    from ..investigate.rescript import remember
    from ..report.reading import read_incident

    old, folder = read_incident(path)
    capsule = load_capsule(folder)
    settings = Settings(diagnose_seconds=seconds)
    if script and build is None:
        from ..investigate.rescript import replay_script

        with tempfile.TemporaryDirectory() as room:
            return old, replay_script(capsule, old, settings, Path(room), script, is_module)
    if build is None:
        raise UsageError(_which_script(folder, capsule))
    model, loss_fn, optimizer, scheduler, scaler = _parts(_function(build)(), build)
    load_into(capsule, model, optimizer, scheduler, scaler)
    with Guard(model, optimizer, scheduler=scheduler, scaler=scaler, settings=settings) as guard:
        guard.folder._say = _silent
        guard.engine.deep_checks.initialize()
        remember(guard.engine, capsule, old)
        guard._steps.num_batches = capsule["step"]
        torch.set_rng_state(capsule["rng"])
        for batch in capsule["batches"]:
            guard.step(loss_fn, batch)
    return old, guard.incidents[0] if guard.incidents else None


def _which_script(folder: Path, capsule: dict[str, Any]) -> str:
    """The command to type; the one in the incident is only shown, never run."""
    from ..investigate.capsule import recorded_command

    recorded = recorded_command(capsule)
    says = f"the incident says that this was run: {recorded}\n" if recorded else ""
    return (
        f"the step needs your script to run again\n{says}"
        "nothing of that was run: an incident is data that somebody may have sent\n"
        f"  try: stayfinite replay {folder} -- train.py [ARGS]...\n"
        "  or, with a Guard of your own: --build MODULE:FUNCTION, a function that takes nothing and "
        "returns (model, loss_fn, optimizer) or (model, loss_fn, optimizer, scheduler, scaler)"
    )


def _silent(incident: Incident) -> None:
    """Print nothing: the command prints the whole report."""


def _function(build: str) -> Callable[[], Any]:
    import importlib
    import importlib.util

    home, _, name = build.rpartition(":")
    if not home or not name:
        raise UsageError(f"--build takes MODULE:FUNCTION or FILE.py:FUNCTION, got {build!r}")
    try:
        if home.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(home).stem, home)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, "")
            module = importlib.import_module(home)
    except (ImportError, OSError) as e:
        raise UsageError(f"--build: cannot import {home!r}: {e}") from e
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"--build: {home} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def _parts(built: Any, build: str) -> tuple[Any, Any, Any, Any, Any]:
    from torch.optim import Optimizer

    if isinstance(built, dict):  # what `check` takes
        built = (
            built.get("model"), built.get("loss_fn"), built.get("optimizer"),
            built.get("scheduler"), built.get("scaler"),
        )  # fmt: skip
    parts = tuple(built) if isinstance(built, (tuple, list)) else ()
    if len(parts) == 4 and isinstance(parts[3], Optimizer):
        parts = (parts[0], parts[1], parts[3])
    if not 3 <= len(parts) <= 5:
        raise UsageError(
            f"{build} must return (model, loss_fn, optimizer), with a scheduler and a scaler behind "
            f"them, or what `stayfinite check` takes, got {type(built).__name__}{f' of {len(parts)}' if parts else ''}"
        )
    model, loss_fn, optimizer, scheduler, scaler = (*parts, None, None)[:5]
    return model, loss_fn, optimizer, scheduler, scaler


def _finite(old: Incident) -> str:
    return (
        f"step {old.event.step}: finite now; it does not fail again\n"
        "  try: if the code is unchanged, the failure depends on something that was not saved "
        "(hardware, other processes, state outside the model)"
    )


def _compared(old: Incident, new: Incident) -> str:
    a, b = old.location, new.location
    same = (a.op, a.line) == (b.op, b.line)
    text = "the step fails again" + (", at the same operator and line" if same else ", elsewhere")
    if old.diagnosis.cause and new.diagnosis.cause != old.diagnosis.cause:
        text += f"; the saved cause was {old.diagnosis.cause}"
    return text
