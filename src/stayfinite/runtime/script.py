"""An unmodified script under the guard: `stayfinite run`."""

from __future__ import annotations

import functools
import gc
import linecache
import os
import runpy
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..config import Settings
from ..errors import BudgetExceededError, CheckpointError, NonFiniteError, StayfiniteError
from ..locate.frames import is_user_file
from ..numerics.parts import listeners as part_listeners
from ..observe import witness
from ..observe.counters import variables
from ..observe.wires import Wires
from ..records import Incident
from ..recover.ledger import LEDGER_NAME, Ledger
from ..recover.policy import Policy
from ..report.sinks import make_sink
from ..report.store import RunFolder
from ..report.terminal import say_incident, say_summary
from .about import environment
from .body import scenes_of_traceback
from .checkpoints import CheckpointWatch
from .core import Core
from .journaling import RunJournal
from .loop import LoopDriver
from .ranks import launched_at, launched_rank
from .spawned import watch_spawned
from .state import TrainState

__all__ = ["ScriptRun"]


class ScriptRun:
    """Runs one script or module as `__main__`, watched."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        run_dir: Path | None,
        sinks: Sequence[str] = (),
        on_incident: Callable[[Incident], object] | None = None,
        index: int = 0,
        resume_check: bool = True,
    ) -> None:
        self._wanted_dir = run_dir
        self._checks_resume = resume_check
        self._checkpoints: CheckpointWatch | None = None
        self._sinks = sinks
        self._tell = on_incident
        self._index = index
        self._wires: Wires | None = None
        self._has_told = False
        """With several ranks one of them tells; the others hold the incidents and are silent."""
        self.core = Core(TrainState(), settings, policy)
        self.driver = ScriptDriver(self.core)
        self.folder: RunFolder | None = None

    def run_file(self, path: str, args: list[str]) -> int:
        """As `python path args…`."""
        try:
            source = Path(path).read_bytes()
        except OSError as e:
            print(f"stayfinite run: can't open file {path!r}: {e.strerror}", file=sys.stderr)
            return 2
        sys.argv = [path, *args]
        sys.path[0] = os.path.dirname(os.path.abspath(path))

        def body() -> None:
            main = types.ModuleType("__main__")
            main.__file__ = path
            main.__dict__["__builtins__"] = __builtins__
            sys.modules["__main__"] = main
            exec(compile(source, path, "exec"), main.__dict__)

        return self._run(body, Path(path).stem, os.path.abspath(path))

    def run_module(self, name: str, args: list[str]) -> int:
        """As `python -m name args…`."""
        sys.argv = [name, *args]
        sys.path[0] = os.getcwd()

        def body() -> None:
            runpy.run_module(name, run_name="__main__", alter_sys=True)

        return self._run(body, name.rpartition(".")[-1], None)

    def run_call(self, call: Callable[[], Any]) -> Any:
        """A process that the script has started: what it raises is the script's own business."""
        folder = Path(self._wanted_dir or "stayfinite-runs")
        self._set_up(folder, folder.name)
        witness.install()
        wires = Wires(self.driver, with_loaders=True)
        try:
            return call()
        finally:
            self._finish(sys.exc_info()[1])
            self._close(wires)
            self._sum_up(folder)

    def leave(self) -> None:
        """In a forked child: the parent's wires come out before the child puts in its own."""
        if self._wires is not None:
            self._wires.close()
        if self._checkpoints is not None:
            self._checkpoints.close()
        self.driver.close()

    def for_child(self, index: int) -> Callable[[], ScriptRun]:
        """How the process that the script starts as number `index` makes its own run."""
        folder = self.folder.path if self.folder is not None else None
        core = self.core
        return functools.partial(
            ScriptRun, core.settings, core.policy, folder, tuple(self._sinks), index=index,
            resume_check=self._checks_resume,
        )  # fmt: skip

    def _set_up(self, folder: Path, name: str) -> None:
        """Journal and sinks for one process only; which samples were left out, each knows itself."""
        number = launched_rank() or self._index
        self.folder = RunFolder(folder, say=say_incident)
        self.core.on_incident = self._save
        self.core.snapshot_folder = folder / "snapshots" / f"rank{number}"
        ledger = LEDGER_NAME if number == 0 else LEDGER_NAME.replace(".", f".rank{number}.")
        self.core.recovery.ledger = Ledger(folder / ledger)
        self._checkpoints = CheckpointWatch(self.core, self._checks_resume)
        part_listeners.add(self.core.recovery)
        if number == 0:
            sinks = [make_sink(s, folder) for s in self._sinks]
            about = {"script": name, **environment()}
            self.core.journal = RunJournal(folder, self.core.state, about, sinks)

    def _run(self, body: Any, name: str, script: str | None) -> int:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(launched_at()))
        folder = self._wanted_dir or Path("stayfinite-runs") / f"{name}-{stamp}"
        try:
            self._set_up(Path(folder), script or name)
        except StayfiniteError as e:
            print(f"stayfinite run: {e}", file=sys.stderr)
            return 2
        witness.install()
        self._wires = wires = Wires(self.driver, with_loaders=True)
        try:
            with watch_spawned(self):
                body()
            code = 0
        except SystemExit as e:
            code = _exit_code(e)
        except KeyboardInterrupt:
            _show(sys.exc_info()[1], script)
            code = 130
        except (NonFiniteError, BudgetExceededError, CheckpointError) as e:
            if self._has_told:
                print(f"stayfinite: {e}", file=sys.stderr)
            code = 1
        except BaseException as e:
            self._finish(e)
            _show(e, script)
            code = 1
        finally:
            self._finish()
            self._close(wires)
        self._sum_up(folder)
        return code

    def _close(self, wires: Wires) -> None:
        if self.core.journal is not None:
            self.core.journal.close()
        if self._checkpoints is not None:
            self._checkpoints.close()
        part_listeners.discard(self.core.recovery)
        wires.close()
        self.driver.close()
        if self.core.ranks.has_others:
            # A wrapped model holds its process group; that must end before the interpreter does.
            self.core.let_go()
            self.driver.window = self.driver.last_call = None
            gc.collect()

    def _sum_up(self, folder: Path) -> None:
        if self._has_told:
            say_summary(self.core.incidents, self.driver.num_steps, folder)

    def _save(self, incident: Incident) -> Incident:
        assert self.folder is not None
        self._has_told = True
        saved = self.folder.save(incident)
        if self._tell is not None:
            self._tell(saved)
        return saved

    def _finish(self, error: BaseException | None = None) -> None:
        """Tell what is known of a failure that the script did not survive."""
        try:
            scenes = scenes_of_traceback(error.__traceback__) if error is not None else []
            self.driver.abandon(scenes)
        except StayfiniteError as e:
            print(f"stayfinite: {e}", file=sys.stderr)


class ScriptDriver(LoopDriver):
    """A loop driver that also has to find the models."""

    def __init__(self, core: Core) -> None:
        super().__init__(core, counts_every_batch=False)
        self._num_known = 0
        self._hooks: list[Any] = []

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def before_window(self) -> None:
        """Models are looked for whenever an optimizer has turned up since the last look."""
        if len(self.state.optimizers) == self._num_known:
            return
        self._num_known = len(self.state.optimizers)
        found = find_models(self.state.optimizers)
        known = {id(m) for m in self.state.roots.values()}
        if any(id(m) not in known for m in found):
            self._adopt(found)

    def _adopt(self, models: list[nn.Module]) -> None:
        self.state.roots.clear()
        if len(models) == 1:
            self.state.add_root(models[0], "")
        else:
            for i, model in enumerate(models):
                self.state.add_root(model, variable_name(model) or f"{type(model).__name__}{i}")
        for i, module in enumerate(find_stateful()):
            self.state.add_root(module, variable_name(module) or f"{type(module).__name__}{i}")
        self.close()
        self._hooks = [m.register_forward_pre_hook(self._on_call, with_kwargs=True) for m in models]
        self.core.prime_again()

    def _on_call(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Remember what the model was called with, for loops that cannot be run again."""
        if self.active is None and torch.is_grad_enabled():
            # Between a batch and the model nothing is drawn, as a rule.
            rng = self.window.rng if self.window is not None else None
            self.last_call = (module, args, kwargs, (rng or self.core.rng.capture()).torch)


def find_models(optimizers: list[Optimizer]) -> list[nn.Module]:
    """The outermost modules that hold what these optimizers move, oldest first.

    An optimizer that moves tensors of no module may hold copies in float32 of a half-precision
    model's weights: then every other module that is trained (not a frozen teacher, not an average)
    counts as a model too. One walk over the objects of the process, instead of a hook on every
    module call.
    """
    moved = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
    held = [(m, list(m.parameters())) for m in _outermost()]
    if moved <= {id(p) for _, params in held for p in params}:
        return [m for m, params in held if any(id(p) in moved for p in params)]
    averages = list(witness.witness.averages)
    return [
        m
        for m, params in held
        if any(id(p) in moved for p in params)
        or (any(_is_trained(p) for p in params) and not any(m is a for a in averages))
    ]


def _is_trained(parameter: torch.Tensor) -> bool:
    return parameter.requires_grad and parameter.is_floating_point()


def find_stateful() -> list[nn.Module]:
    """Modules without any parameter that keep floating buffers: a loss with a running center.

    Their buffers are state of the training as much as the model's: a step that is left out must
    leave no NaN in them. Modules with parameters that nobody moves (a frozen encoder) are not taken.
    """
    return [
        m
        for m in _outermost()
        if next(m.parameters(), None) is None and any(b.is_floating_point() for b in m.buffers())
    ]


def _outermost() -> list[nn.Module]:
    modules = [o for o in gc.get_objects() if issubclass(type(o), nn.Module)]
    children = {id(c) for m in modules for c in m._modules.values() if c is not None}
    return [m for m in modules if id(m) not in children]


def variable_name(model: nn.Module) -> str | None:
    """What the script calls this model."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            for scope in (variables(frame), frame.f_globals):
                for name, value in list(scope.items()):
                    if value is model and not name.startswith("_") and name != "self":
                        return name
        frame = frame.f_back
    return None


def _exit_code(e: SystemExit) -> int:
    if e.code is None:
        return 0
    if isinstance(e.code, int):
        return e.code
    print(e.code, file=sys.stderr)
    return 1


def _show(error: BaseException | None, script: str | None) -> None:
    """The script's own traceback, as if nobody had been watching."""
    if error is None:
        return
    sys.stdout.flush()
    shown = traceback.TracebackException.from_exception(error)
    seen: traceback.TracebackException | None = shown
    while seen is not None:
        seen.stack = _without_us(seen.stack)
        seen = seen.__cause__ or seen.__context__
    print("".join(shown.format()), end="", file=sys.stderr)


def _without_us(stack: traceback.StackSummary) -> traceback.StackSummary:
    """Without our frames, and with module calls as they look without a hook."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    torch_module = os.path.join("nn", "modules", "module.py")
    kept = []
    for frame in stack:
        if _is_ours(frame.filename, own):
            continue
        if frame.filename.endswith(torch_module) and frame.name == "inner":
            continue
        if frame.filename.endswith(torch_module) and frame.name == "_call_impl":
            frame = _fast_call(frame)
        kept.append(frame)
    return traceback.StackSummary.from_list(kept)


def _fast_call(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    wanted = "return forward_call(*args, **kwargs)"
    for number, text in enumerate(linecache.getlines(frame.filename), 1):
        if text.strip() == wanted:
            start = text.index("forward_call")
            where: dict[str, Any] = {"end_lineno": number, "colno": start}
            where["end_colno"] = len(text.rstrip())
            if sys.version_info < (3, 11):
                where = {}
            return traceback.FrameSummary(frame.filename, number, frame.name, line=None, **where)
    return frame


def _is_ours(file: str, own: str) -> bool:
    path = os.path.abspath(file)
    is_demo = path.startswith(os.path.join(own, "demo") + os.sep)
    is_runner = file.startswith("<frozen") or os.path.basename(file) == "runpy.py"
    return (path.startswith(own + os.sep) and not is_demo) or is_runner
