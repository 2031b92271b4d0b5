"""The options of `stayfinite run`, parsed without typer so that it starts fast.

That library takes as long to import as all of ours. So the usual words are read here, and it is asked
only for what is not usual: help, and what is wrong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

__all__ = ["RunOptions", "prepare", "read"]

_INVESTIGATE = "stayfinite.investigate.entry:investigate"
"""Imported at the first bad step, so that healthy runs start sooner."""


@dataclass(frozen=True)
class RunOptions:
    """The options of `run`, with their defaults."""

    target: tuple[str, ...] = ()
    module: str | None = None
    policy: str = "auto"
    on_spike: str = "warn"
    run_dir: Path | None = None
    max_skips: int = 50
    overhead: float = 0.005
    deferred: bool = False
    resume_check: bool = True
    diagnose: bool = True
    replay: str = "auto"
    plan: Path | None = None
    without: tuple[str, ...] = ()
    show_patches: bool = False
    store_args: bool = False
    sink: tuple[str, ...] = ()
    on_incident: str | None = None

    def words(self) -> tuple[str, ...]:
        """The same on a command line, without the script, its folder, and what is printed once.

        >>> RunOptions(policy="skip", diagnose=False, without=("saves", "plan")).words()
        ('--policy', 'skip', '--no-diagnose', '--without', 'saves', '--without', 'plan')
        """
        found: list[str] = []
        for f in fields(self):
            value = getattr(self, f.name)
            if value == f.default or f.name in ("target", "module", "run_dir", "show_patches"):
                continue
            option = f.name.replace("_", "-")
            if isinstance(value, bool):
                found.append(f"--{option}" if value else f"--no-{option}")
            else:
                values = value if isinstance(value, tuple) else (value,)
                found += [word for v in values for word in (f"--{option}", str(v))]
        return tuple(found)


_FORMER = {"budget": "overhead"}
"""Options that are still read under their former names."""
_READ: dict[str, Callable[[str], object]] = {
    "str": str, "str | None": str, "int": int, "float": float, "Path | None": Path,
    "tuple[str, ...]": str,
}  # fmt: skip


def read(args: list[str]) -> RunOptions | None:
    """The words behind `run`; None for what the whole command line has to be asked about.

    >>> read(["--policy", "skip", "--no-diagnose", "train.py", "--lr", "3"]).target
    ('train.py', '--lr', '3')
    >>> read(["-m", "pkg.train", "--lr", "3"]).module
    'pkg.train'
    >>> read(["--help"])
    """
    kinds = {f.name: str(f.type) for f in fields(RunOptions) if f.name != "target"}
    given: dict[str, object] = {}
    lists: dict[str, list[object]] = {}
    rest = list(args)
    while rest and rest[0].startswith("-"):
        word, has_value, value = rest.pop(0).partition("=")
        name = "module" if word == "-m" else word[2:].replace("-", "_")
        name = _FORMER.get(name, name)
        if kinds.get(name) == "bool" and not has_value and word.startswith("--"):
            given[name] = True
            continue
        if name.startswith("no_") and getattr(RunOptions, name[3:], None) is True and not has_value:
            given[name[3:]] = False
            continue
        if kinds.get(name, "bool") == "bool" or "_" in word or (word == "-m" and has_value):
            return None
        if not has_value:
            if not rest:
                return None
            value = rest.pop(0)
        try:
            found = _READ[kinds[name]](value)
        except ValueError:
            return None
        if kinds[name].startswith("tuple"):
            lists.setdefault(name, []).append(found)
        else:
            given[name] = found
        if name == "module":
            break
    more = {name: tuple(values) for name, values in lists.items()}
    return RunOptions(target=tuple(rest), **given, **more)  # type: ignore[arg-type]


def prepare(given: RunOptions) -> Callable[[], int]:
    """A function that runs the script and returns its exit code; raises UsageError for wrong options.

    A script that Control-C has ended raises KeyboardInterrupt there, so that the process ends as Python would.
    """
    from ..config import Settings
    from ..errors import UsageError
    from ..recover.policy import Policy

    _check(given)
    settings = Settings(
        budget=given.overhead, deferred=given.deferred, diagnose=given.diagnose, replay=given.replay,
        without=given.without, store_args=given.store_args,
    )  # fmt: skip
    rules = Policy.parse(
        given.policy, max_consecutive_skips=given.max_skips, on_spike=given.on_spike
    )
    rules.check_ranks(int(os.environ.get("WORLD_SIZE", "1") or 1))
    stages = None
    if given.plan is not None:
        from ..recover.plan import StagedPlan

        stages = StagedPlan.from_file(given.plan)
        if stages.metrics and "plan" in settings.without:
            raise UsageError(
                f"the plan asks for {', '.join(sorted(stages.metrics))}, which is read from what the "
                "script prints, and --without plan turns that off"
            )
    hook = None
    if given.on_incident:
        from ..report.hooks import incident_hook

        hook = incident_hook(given.on_incident)
    from ..runtime.script.run_script import ScriptRun

    script = ScriptRun(
        settings=settings, policy=rules, run_dir=given.run_dir, investigate=_INVESTIGATE,
        shows_patches=given.show_patches, sinks=given.sink, on_incident=hook,
        resume_check=given.resume_check, plan=stages, words=given.words(),
    )  # fmt: skip

    def start() -> int:
        words = list(given.target)
        sys.excepthook = sys.__excepthook__  # the command line's own would show our frames
        if given.module is not None:
            code = script.run_module(given.module, words)
        else:
            code = script.run_file(words[0], words[1:])
        if script.is_interrupted:
            sys.excepthook = lambda *_: None  # it has been shown; Python ends itself by the signal
            raise KeyboardInterrupt
        return code

    return start


def _check(given: RunOptions) -> None:
    from ..errors import UsageError

    if given.module is None and not given.target:
        raise UsageError("give the script to run: stayfinite run train.py [ARGS]...")
    if given.run_dir is not None and given.run_dir.is_file():
        raise UsageError(
            f"--run-dir {given.run_dir} is a file; give a folder, which need not exist yet"
        )
    if not 0 < given.overhead <= 1:
        raise UsageError(f"`--overhead` must be above 0 and at most 1, got {given.overhead}")
