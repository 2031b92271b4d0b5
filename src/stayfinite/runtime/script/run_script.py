"""`stayfinite run`: an unmodified script under the guard."""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from ...config import Settings
from ...errors import (
    BudgetExceededError,
    CheckpointError,
    NonFiniteError,
    StageFailedError,
    StayfiniteError,
)
from ...numerics.parts import listeners as part_listeners
from ...patches import provenance as _provenance
from ...patches.firewall import Firewall
from ...patches.gradients import GradientPatches
from ...patches.loaders import LoaderPatches
from ...patches.manager import table
from ...patches.training import TrainingPatches
from ...putting_back import put_back
from ...records import Incident
from ...recover.plan import StagedPlan
from ...recover.policy import Policy
from ...report.journal import JOURNAL_NAME
from ...report.sinks import make_sink
from ...report.store import RunFolder
from ...report.terminal import say_incident, say_summary
from ...saying import say
from ..engine import Engine, Investigate
from ..incidents import environment
from ..loop.script_driver import ScriptDriver
from ..plan.follow import follow_plan
from ..ranks.groups import launched_at, own_rank
from ..run_files import keep_files
from ..saves.checkpoints import CheckpointWatch
from ..saves.restarts import attempt, resumes_after
from ..state import TrainState
from ..window import Failure, Verdict, Window
from .as_main import run_module_as_main, run_path_as_main
from .spawned import watch_spawned
from .traceback_view import show

__all__ = ["ScriptRun", "run_here"]

_listening: list[ScriptRun] = []
"""The active runs of this process, the innermost last."""


def run_here() -> ScriptRun | None:
    """The run that already protects this thread; a second one leaves the work to it."""
    me = threading.get_ident()
    return next((r for r in reversed(_listening) if r.driver.thread_id == me), None)


class ScriptRun:
    """Runs one script or module as `__main__` under protection."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        run_dir: Path | None,
        investigate: Investigate | str,
        sinks: Sequence[str] = (),
        on_incident: Callable[[Incident], object] | None = None,
        index: int = 0,
        resume_check: bool = True,
        shows_patches: bool = False,
        plan: StagedPlan | None = None,
        words: Sequence[str] = (),
    ) -> None:
        self._words = words
        """The options of this run on the command line, for the processes that are started by a command."""
        self._plan = plan
        self._shows_patches = shows_patches
        self._wanted_dir = run_dir
        self._checks_resume = resume_check
        self._checkpoints: CheckpointWatch | None = None
        self._sinks = sinks
        self._on_incident = on_incident
        self._index = index
        self._investigate = investigate
        self._has_reported = False
        """Whether this process has reported; with several ranks only one of them does."""
        self._accumulates = False
        """Whether a bad step had several batches, so that the summary counts batches."""
        self._training: TrainingPatches | None = None
        self._gradients: GradientPatches | None = None
        self._loaders: LoaderPatches | None = None
        self.engine = Engine(TrainState(), settings, policy, self._investigate_lazily)
        self.driver = ScriptDriver(self.engine)
        self.folder: RunFolder | None = None

    def _investigate_lazily(self, engine: Engine, window: Window, failure: Failure) -> Verdict:
        found = self._investigate
        investigate: Investigate = resolve_name(found) if isinstance(found, str) else found
        return investigate(engine, window, failure)

    def run_file(self, path: str, args: list[str]) -> int:
        """Run like `python path args…`."""
        try:
            open(path, "rb").close()
        except OSError as e:
            say(f"stayfinite run: can't open file {path!r}: {e.strerror}")
            return 2
        body = functools.partial(run_path_as_main, path, args)
        return self._run(body, Path(path).stem, os.path.abspath(path))

    def run_module(self, name: str, args: list[str]) -> int:
        """Run like `python -m name args…`."""
        body = functools.partial(run_module_as_main, name, args)
        return self._run(body, name.rpartition(".")[-1], None)

    def run_call(self, call: Callable[[], Any]) -> Any:
        """Run the target of a process that the script has started; exceptions are passed on."""
        folder = Path(self._wanted_dir or "stayfinite-runs")
        self._set_up(folder, folder.name)
        self._listen()
        try:
            return call()
        finally:
            end = Firewall("the end of the run")
            end.once(self._end, folder, sys.exc_info()[1])
            if self in _listening:
                end.once(self.leave)

    def for_child(self, index: int) -> Callable[[], ScriptRun]:
        """A function that makes the run of the child process number `index`."""
        folder = self.folder.path if self.folder is not None else None
        engine = self.engine
        return functools.partial(
            ScriptRun, engine.settings, engine.policy, folder, self._investigate,
            tuple(self._sinks), index=index, resume_check=self._checks_resume, words=self._words,
        )  # fmt: skip

    def command(self) -> list[str]:
        """What stands before the script where the script starts another rank by a command."""
        folder = ["--run-dir", str(self.folder.path)] if self.folder and self.folder.path else []
        return ["-m", "stayfinite", "run", *self._words, *folder]

    def _set_up(self, folder: Path | None, name: str) -> None:
        """Set up the run folder; only one process has a journal and sinks, but each has its ledger."""
        number = own_rank() or self._index
        engine = self.engine
        folder = (
            folder.absolute() if folder is not None else None
        )  # the script may change its working directory
        self.folder = RunFolder(folder, say=say_incident)
        engine.on_incident = self._save
        part_listeners.add(engine.recovery)
        if self._plan is not None:
            follow_plan(engine, self._plan, folder)
        if folder is None:
            return

        def about() -> dict[str, str]:
            found = {"script": name, **environment()}
            if attempt():
                found["attempt"] = str(attempt())
                _say_attempt(folder)
            return found

        keep_files(
            engine, folder, number, about, lambda: [make_sink(s, folder) for s in self._sinks]
        )

    def _listen(self) -> None:
        """Install all patches."""
        _listening.append(self)
        without = self.engine.settings.without
        if "provenance" not in without:
            _provenance.install()
        if "saves" not in without:
            self._checkpoints = CheckpointWatch(self.engine, self._checks_resume)
        if "training" not in without:
            self._training = TrainingPatches(self.driver, finds_optimizers=True)
            self._gradients = GradientPatches(self.driver)
        if "loaders" not in without:
            self._loaders = LoaderPatches(self.driver)
            self.driver.on_new_optimizer = lambda _: self._look_for_loaders()
        self.driver.on_close = self._unlisten
        if self._shows_patches:
            say(patch_table())

    def _look_for_loaders(self) -> None:
        if self._loaders is not None:
            self._loaders.look_for_others()

    def _unlisten(self) -> None:
        parts = (self._training, self._gradients, self._loaders, self._checkpoints)
        put_back(*(part.close for part in parts if part is not None))
        self._checkpoints = None

    def leave(self) -> None:
        """Remove all patches and release the training."""
        end = Firewall("the end of the run")
        if self in _listening:
            _listening.remove(self)
        if self.engine.journal is not None:
            end.once(self.engine.journal.close)
        part_listeners.discard(self.engine.recovery)
        closings = [self._unlisten, self.engine.recovery.healing.close]
        if self.engine.recovery.plan is not None:
            closings.append(self.engine.recovery.plan.close)
        if "provenance" not in self.engine.settings.without:
            closings.append(_provenance.remove)
        end.once(put_back, *closings)
        if self.engine.ranks.has_others:
            # A wrapped model refers to its process group, which must be freed before the interpreter ends.
            self.engine.release_all()
            self.driver.tracker.window = None
            gc.collect()

    def _run(self, body: Callable[[], None], name: str, script: str | None) -> int:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(launched_at()))
        folder = self._wanted_dir or Path("stayfinite-runs") / f"{name}-{stamp}"
        try:
            self._set_up(Path(folder), script or name)
        except StayfiniteError as e:
            say(f"stayfinite run: {e}")
            return 2
        self.engine.script = script
        self._listen()
        code = 0
        try:
            with watch_spawned(self):
                body()
        except SystemExit as e:
            code = _exit_code(e)
            if code:
                Firewall("the last check").once(self._finish, e)
        except KeyboardInterrupt as e:
            show(e)
            code = 130
        except (NonFiniteError, BudgetExceededError, CheckpointError, StageFailedError) as e:
            if self._has_reported or isinstance(e, (CheckpointError, StageFailedError)):
                say(f"stayfinite: {e}")
            code = 1
        except BaseException as e:
            Firewall("the last check").once(self._finish, e)
            show(e)
            code = 1
        finally:
            end = Firewall("the end of the run")
            end.once(self._end, Path(folder), None)
            if self in _listening:
                end.once(self.leave)
        return code

    def _end(self, folder: Path, error: BaseException | None) -> None:
        """Run the last check, remove the patches, print the summary. The caller removes the patches if this fails."""
        end = Firewall("the end of the run")
        end.once(self._finish, error)
        end.once(put_back, self.leave)
        end.once(self._print_summary, folder)

    def _print_summary(self, folder: Path) -> None:
        if self._has_reported:
            unit = "batches" if self._accumulates else "steps"
            say_summary(self.engine.incidents, f"{self.driver.num_steps} {unit}", folder)

    def _save(self, incident: Incident) -> Incident:
        assert self.folder is not None
        self._has_reported = True
        window = self.driver.tracker.window
        self._accumulates = self._accumulates or (window is not None and len(window.batches) > 1)
        saved = self.folder.save(incident)
        if self._on_incident is not None:
            self._on_incident(saved)
        return saved

    def _finish(self, error: BaseException | None = None) -> None:
        """Run the last check, after a failure of the script with its exception."""
        try:
            if isinstance(error, (Exception, SystemExit)):
                self.driver.firewall.call(self.driver.on_error, error)
            self.driver.firewall.call(self.driver.finish)
        except StayfiniteError as e:
            say(f"stayfinite: {e}")


def _say_attempt(folder: Path) -> None:
    before = resumes_after(folder / JOURNAL_NAME)
    say(
        f"stayfinite: the launcher has started this training again (attempt {attempt() + 1}) after it failed; "
        f"{before}"
    )


def _exit_code(e: SystemExit) -> int:
    if e.code is None:
        return 0
    if isinstance(e.code, int):
        return e.code
    say(e.code)
    return 1


def patch_table() -> str:
    """The current patches, and the part by which each is turned off (`--without`)."""
    rows = [(f"{r.owner}.{r.name}", r.switch, r.reason) for r in table()]
    rows.append(
        ("step() of each optimizer's class", "training", "when the first of its kind is made")
    )
    wide = max(len(name) for name, _, _ in rows)
    lines = [f"  {name:<{wide}}  {switch:<10}  {reason}" for name, switch, reason in rows]
    return "\n".join(
        ["stayfinite: patched in this process (turn a part off with --without PART)", *lines]
    )
