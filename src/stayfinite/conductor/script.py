"""An unmodified script under the guard: `stayfinite run`."""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer

from ..config import Settings
from ..errors import BudgetExceededError, NonFiniteError, StayfiniteError
from ..observe import witness
from ..observe.wires import Wires
from ..recover.policy import Policy
from ..report.store import RunFolder
from ..report.terminal import say_incident, say_summary
from .core import Core
from .loop import LoopDriver
from .state import TrainState

__all__ = ["ScriptRun"]

_QUIET_STEPS = 3


class ScriptRun:
    """Runs one script or module as `__main__`, watched."""

    def __init__(self, settings: Settings, policy: Policy, run_dir: Path | None) -> None:
        self._wanted_dir = run_dir
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

    def _run(self, body: Any, name: str, script: str | None) -> int:
        folder = (
            self._wanted_dir or Path("stayfinite-runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        )
        self.folder = RunFolder(folder, say=say_incident)
        self.core.on_incident = self.folder.save
        witness.install()
        wires = Wires(self.driver, with_loaders=True)
        self.driver.wires = wires
        try:
            body()
            code = 0
        except SystemExit as e:
            code = _exit_code(e)
        except KeyboardInterrupt:
            _show(sys.exc_info()[1], script)
            code = 130
        except (NonFiniteError, BudgetExceededError) as e:
            print(f"stayfinite: {e}", file=sys.stderr)
            code = 1
        except BaseException as e:
            self._finish()
            _show(e, script)
            code = 1
        finally:
            self._finish()
            wires.close()
            self.driver.close()
        if self.core.incidents:
            say_summary(self.core.incidents, self.driver.num_batches, folder)
        return code

    def _finish(self) -> None:
        """Tell what is known of a failure that the script did not survive."""
        try:
            self.driver.abandon()
        except StayfiniteError as e:
            print(f"stayfinite: {e}", file=sys.stderr)


class ScriptDriver(LoopDriver):
    """A loop driver that also has to find the models."""

    def __init__(self, core: Core) -> None:
        super().__init__(core, counts_every_batch=False)
        self.wires: Wires | None = None
        self._known: set[int] = set()
        self._quiet = 0
        self._hook: Any = None
        self._names: dict[int, str] = {}
        self._look()

    def _look(self) -> None:
        """Watch module calls until a few steps in a row brought no new model."""
        self._quiet = 0
        if self._hook is None:
            self._hook = register_module_forward_pre_hook(self._on_module)

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def on_optimizer(self, optimizer: Optimizer) -> None:
        super().on_optimizer(optimizer)
        self._look()

    def on_optimizer_step(self, optimizer: Optimizer, closure: Any, call: Any) -> Any:
        if self._hook is not None and self.active is None:
            self._quiet += 1
            if self._quiet > _QUIET_STEPS:
                self.close()
        return super().on_optimizer_step(optimizer, closure, call)

    def _on_module(self, module: nn.Module, args: Any) -> None:
        if id(module) in self._known or self.active is not None:
            return
        self._known.update(id(m) for m in module.modules())
        moved = {id(p) for o in self.state.optimizers for g in o.param_groups for p in g["params"]}
        if not any(id(p) in moved for p in module.parameters()):
            return  # a criterion or a frozen helper: outside the model
        self._quiet = 0
        self._add(module)

    def _add(self, module: nn.Module) -> None:
        name = _variable_name(module) or type(module).__name__
        self._names[id(module)] = name
        roots = self.state.roots
        if len(roots) == 1 and "" in roots:
            first = roots.pop("")
            roots[self._names.get(id(first), type(first).__name__)] = first
        self.state.add_root(module, name if roots else "")
        self._names[id(self.state.roots[name if roots and name in roots else ""])] = name
        self.core.prime_again()


def _variable_name(module: nn.Module) -> str | None:
    """What the script calls this model."""
    frame = sys._getframe(2)
    for _ in range(12):
        for scope in (frame.f_locals, frame.f_globals):
            for name, value in list(scope.items()):
                if value is module and not name.startswith("_") and name != "self":
                    return name
        if frame.f_back is None:
            return None
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
    """The script's own traceback, without the frames that are ours."""
    if error is None:
        return
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    tb = error.__traceback__
    while tb is not None and _is_ours(tb.tb_frame.f_code.co_filename, own):
        tb = tb.tb_next
    sys.stdout.flush()
    traceback.print_exception(type(error), error, tb)


def _is_ours(file: str, own: str) -> bool:
    path = os.path.abspath(file)
    is_demo = path.startswith(os.path.join(own, "demo") + os.sep)
    return (path.startswith(own + os.sep) and not is_demo) or file.startswith("<frozen")
