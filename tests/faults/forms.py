"""The three ways to train under the guard, each with the same training."""

import pathlib
import sys
from dataclasses import dataclass
from typing import Any

from tests.faults.training import Fault, batches, loop, loss_of, make

from stayfinite import Guard, Incident, Policy, Settings
from stayfinite.investigate.entry import investigate
from stayfinite.runtime.script.run_script import ScriptRun

SCRIPTS = pathlib.Path(__file__).parents[1] / "scripts"
QUICK = Settings(diagnose=False)


@dataclass
class Trained:
    """What a training left behind."""

    incidents: list[Incident]
    model: Any
    optimizer: Any
    scaler: Any


def by_step(fault: Fault, tmp_path: pathlib.Path) -> Trained:
    model, optimizer, scaler = make(fault)
    with Guard(model, optimizer, scaler=scaler, settings=QUICK) as guard:
        for batch in batches(fault):
            guard.step(loss_of, batch)
    return Trained(guard.incidents, model, optimizer, scaler)


def by_loader(fault: Fault, tmp_path: pathlib.Path) -> Trained:
    model, optimizer, scaler = make(fault)
    with Guard(model, optimizer, scaler=scaler, settings=QUICK) as guard:
        loop(guard(batches(fault)), model, optimizer, scaler)
    return Trained(guard.incidents, model, optimizer, scaler)


def by_run(fault: Fault, tmp_path: pathlib.Path) -> Trained:
    """The script as `stayfinite run` runs it, in this process (see the fixture `as_script`)."""
    args = [fault.place, fault.value, fault.precision, str(fault.at)]
    args += ["healthy"] if fault.is_healthy else []
    run, code = run_script("fault_matrix.py", args, tmp_path)
    assert code == 0
    main = sys.modules["__main__"]
    return Trained(run.engine.incidents, main.model, main.optimizer, main.scaler)


def run_script(name: str, args: list[str], run_dir: pathlib.Path) -> tuple[ScriptRun, int]:
    run = ScriptRun(settings=QUICK, policy=Policy(), run_dir=run_dir, investigate=investigate)
    return run, run.run_file(str(SCRIPTS / name), args)


FORMS = {"step": by_step, "loader": by_loader, "run": by_run}
