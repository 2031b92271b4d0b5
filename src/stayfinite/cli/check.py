"""`stayfinite check TARGET`: checks a training before it runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import check_options as options
from .plain import plain_errors
from .script_command import ScriptCommand

if TYPE_CHECKING:
    from ..preflight.records import CheckReport

__all__ = ["register"]

_COLORS = (
    (r"^  (fail) ", "bold red"),
    (r"^  (warn) ", "bold yellow"),
    (r"^  (pass) ", "green"),
    (r"^  (skip) ", "cyan"),
    (r"^verdict: do not start.*", "bold red"),
    (r"^verdict: look first.*", "bold yellow"),
    (r"^verdict: ready.*", "bold green"),
    (r"^ +(do:)", "bold"),
    (r"^(do first:|do this:)", "bold"),
)


def register(app: typer.Typer) -> None:
    # What stands after TARGET is sorted out in `take_late`.
    settings = {"allow_interspersed_args": False}
    app.command(
        "check",
        cls=ScriptCommand,
        context_settings=settings,
        short_help="Find problems before a training runs.",
    )(check)


def check(
    target: options.Target = None,
    module: options.Module = None,
    only: options.Only = None,
    skip: options.Skip = None,
    config: options.Config = None,
    preset: options.Preset = None,
    data: options.Data = None,
    data_samples: options.DataSamples = None,
    steps: options.Steps = 10,
    budget: options.Budget = None,
    pedantic: Annotated[
        bool,
        typer.Option("--pedantic", help="Also report failures that need unrealistic data."),
    ] = False,
    save: options.Save = Path("stayfinite-check"),
    seed: options.Seed = 0,
    prove: options.Prove = False,
    box: options.BoxFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    html: options.Html = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Do not show what passed.")] = False,
) -> None:
    """Look at a training before it runs: environment, config, data, init, forward, edge cases,
    precision, stability. Ends with a verdict and the three things to do first.

    A script runs unmodified in a process of its own for a few steps; its output is muted and the
    files that it writes are held back. Exit code: 0 no check failed, 1 one did, 2 wrong usage.
    """
    _leave_it_to_rank_0()
    _share_the_machine()
    with plain_errors("nothing was changed"):
        given = argparse.Namespace(
            only=list(only or ()), skip=list(skip or ()), json=as_json, html=html, preset=preset,
            budget=budget, pedantic=pedantic, prove=prove, box=box, config=config,
        )  # fmt: skip
        words = options.take_late([*([module] if module else []), *(target or [])], given)
        target = words[1:] if module else words
        if given.prove or given.box is not None:
            given.only = _with_proof(given.only)
        _validate(steps, seed, given.budget)
        if given.preset is not None:
            given.config, target = _with_preset(
                given.config, given.preset, target, quiet=given.json
            )
            if not target and module is None and data is None:
                raise typer.Exit(0)
        report = _report(
            target, module, given.config, data, given.only, given.skip, seed,
            {
                "steps": steps, "data_samples": _num_samples(data_samples),
                "budget_s": given.budget, "pedantic": given.pedantic, "save_dir": save,
                "box_path": _box_path(given.box),
            },
        )  # fmt: skip
        if given.html is not None:
            _write_page(report, given.html)
        _print(report, given.json, quiet)
        raise typer.Exit(report.exit_code)


def _share_the_machine() -> None:
    """Read when torch is loaded: threads that wait without spinning are far faster beside other work."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _leave_it_to_rank_0() -> None:
    """Under torchrun one process is enough: it checks the training as the only rank."""
    rank = os.environ.get("RANK", "0")
    if rank != "0":
        typer.echo(f"stayfinite check: rank {rank} leaves it to rank 0", err=True)
        raise typer.Exit(0)


def _with_proof(only: list[str]) -> list[str]:
    from ..preflight.records import GROUPS

    return [*(only or GROUPS), "proof"]


def _box_path(box: Path | None) -> str:
    from ..errors import UsageError

    if box is not None and not box.is_file():
        raise UsageError(f"`--box` must be a file, got {str(box)!r}")
    return str(box.resolve()) if box is not None else ""


def _validate(steps: int, seed: int, budget: float | None) -> None:
    from ..errors import UsageError

    if budget is not None and not 0 < budget < float("inf"):
        raise UsageError(f"`--budget` must be a number of seconds above 0, got {budget:g}")

    if steps < 1:
        raise UsageError(f"`--steps` must be at least 1, got {steps}")
    if seed < 0:
        raise UsageError(f"`--seed` must be 0 or more, got {seed}")


def _num_samples(text: str | None) -> int | None:
    from ..errors import UsageError

    if text is None:
        return None
    if text == "all":
        return -1
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"`--data-samples` must be a number above 0 or `all`, got {text!r}")
    return int(text)


def _report(
    words: list[str], module: str | None, config: Path | None, data: Path | None,
    only: list[str], skip: list[str], seed: int, how: dict[str, Any],
) -> CheckReport:  # fmt: skip
    from ..preflight.config.read import read_config
    from ..preflight.runner.groups import selected

    selected(only, skip)  # a wrong name is said before anything runs
    settings: dict[str, Any] = {"config": None, "config_path": ""}
    if config is not None:
        settings = {"config": read_config(config).values(), "config_path": str(config)}
    with _progress(only, skip) as (progress, on_samples):
        more: dict[str, Any] = {
            "only": only, "skip": skip, "seed": seed, "progress": progress,
            "on_samples": on_samples, **how, **settings,
        }  # fmt: skip
        if not words and module is None and _needs_no_target(config, data, only, skip):
            return _without_target(data, more)
        report = _of_target(words, module, more)
        if data is not None:
            report = _with_file(report, data, how["data_samples"], on_samples)
        return report


def _of_target(words: list[str], module: str | None, more: dict[str, Any]) -> CheckReport:
    from ..preflight.target import BuildTarget, load_build, parse_target

    target = parse_target(words, module)
    if not isinstance(target, BuildTarget):
        from ..preflight.capture.script import check_script

        return check_script(target, **more)
    from ..preflight.capture.launch import as_one_rank, num_ranks
    from ..preflight.runner.check import check as check_build

    if num_ranks(os.environ):
        os.environ.update(as_one_rank(os.environ))
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return check_build(load_build(target), label=target.label, **more)


def _needs_no_target(
    config: Path | None, data: Path | None, only: list[str], skip: list[str]
) -> bool:
    """The machine, a config or a data file can be looked at before there is a training."""
    from ..preflight.runner.groups import selected

    if config is not None or data is not None:
        return True
    return bool(only) and selected(only, skip) == ("environment",)


def _without_target(data: Path | None, more: dict[str, Any]) -> CheckReport:
    """The machine, a config or a data file by itself."""
    from ..preflight.environment.group import before_any_model
    from ..preflight.runner.groups import Book, conduct, drive, load_groups, report_of, selected

    start = time.perf_counter()
    book = Book(progress=more["progress"])
    wanted = selected(more["only"], more["skip"])
    names = ["environment"] if more["only"] and "environment" in wanted else []
    names += ["config"] if more["config"] is not None and "config" in wanted else []
    subject = before_any_model(more["config"], more["config_path"])
    drive(conduct(subject, load_groups(names), book), _no_probe)
    what = more["config_path"] or (str(data) if data is not None else "this machine")
    report = report_of(what, book, start)
    return (
        report
        if data is None
        else _with_file(report, data, more["data_samples"], more["on_samples"])
    )


def _no_probe(probe: Any) -> Any:
    raise RuntimeError("a config has no training to run")


def _with_file(
    report: CheckReport, data: Path, num_samples: int | None, on_samples: Callable[..., None]
) -> CheckReport:
    import dataclasses

    from ..preflight.data.group import check_file

    start = time.perf_counter()
    found = check_file(data, num_samples, on_samples)
    took = time.perf_counter() - start
    return dataclasses.replace(
        report,
        findings=(*report.findings, *found),
        seconds={**report.seconds, "data": report.seconds.get("data", 0.0) + round(took, 3)},
        duration_s=round(report.duration_s + took, 3),
    )


@contextlib.contextmanager
def _progress(only: list[str], skip: list[str]) -> Iterator[Any]:
    """What is being done, on stderr: a bar for a terminal, a line for each group elsewhere."""
    from ..preflight.runner.groups import selected

    names = selected(only, skip)
    if not sys.stderr.isatty():
        yield _lines(names), lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=len(names))

        def progress(group: str, what: str) -> None:
            done = names.index(group) if group in names else 0
            bar.update(task, completed=done, description=f"{group} {what}".strip()[:60])

        def on_samples(done: int, total: int | None) -> None:
            of = f" of {total:,}" if total else ""
            bar.update(task, description=f"data {done:,}{of}")

        yield progress, on_samples


def _lines(names: tuple[str, ...]) -> Callable[[str, str], None]:
    last = [""]

    def progress(group: str, what: str) -> None:
        if group != last[0] and group:
            last[0] = group
            number = f"{names.index(group) + 1}/{len(names)}" if group in names else ""
            print(f"stayfinite check: {number} {group}", file=sys.stderr, flush=True)

    return progress


def _print(report: CheckReport, as_json: bool, quiet: bool) -> None:
    if as_json:
        typer.echo(report.to_json())
        return
    from rich.console import Console
    from rich.text import Text

    from ..preflight.render import describe

    console = Console(highlight=False, soft_wrap=True)
    for line in describe(report, quiet):
        text = Text(line)
        for pattern, style in _COLORS:
            text.highlight_regex(pattern, style)
        console.print(text)


def _write_page(report: CheckReport, path: Path) -> None:
    from ..preflight.render import page

    path.write_text(page(report), encoding="utf-8")
    typer.echo(f"page: {path}", err=True)


def _with_preset(
    config: Path | None, preset: str, words: list[str], quiet: bool
) -> tuple[Path, list[str]]:
    """The preset's file, and the target with it in place of the config that it was given."""
    from ..errors import UsageError
    from ..preflight.config.presets import PRESETS, note_of, write_preset

    if preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}; presets: {', '.join(PRESETS)}")
    if config is None:
        raise UsageError("`--preset` needs a config to start from\ntry: --config FILE")
    path, changed = write_preset(config, preset)
    if not changed:
        typer.echo(f"{config} is {preset} already: nothing to change", err=quiet)
        return config, words
    typer.echo(f"{preset}: {path}", err=quiet)
    for change in changed:
        by_hand = "" if change.is_applied else f"  (by hand: {change.why_by_hand})"
        is_word = isinstance(change.value, bool) and path.suffix != ".py"
        value = str(change.value).lower() if is_word else change.value
        typer.echo(f"  {change.entry.key}: {value}  {note_of(change)}{by_hand}", err=quiet)
    given = [str(path) if w == str(config) else w for w in words]
    if words:
        typer.echo(_checked_as(words, given, path), err=quiet)
    else:
        typer.echo("settings do not repair unsafe lines; to see which are left:", err=quiet)
        typer.echo(f"  stayfinite check TRAIN.py --config {path}", err=quiet)
    # What nobody has read yet is not held against what the script does.
    return (config if words and given == words else path), given


def _checked_as(words: list[str], given: list[str], path: Path) -> str:
    if given != words:
        return (
            "checked with these settings: what fails below needs a change of the code or the data"
        )
    return (
        "checked with the script's own settings; to check with the new ones, pass them to it:\n"
        f"  stayfinite check {words[0]} --config {path}"
    )
