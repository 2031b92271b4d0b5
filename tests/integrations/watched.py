"""The same training under `stayfinite run`, in this process, to compare with."""

from pathlib import Path

from stayfinite import Policy, Settings
from stayfinite.investigate.entry import investigate
from stayfinite.runtime.script.run_script import ScriptRun


def under_run(call, folder, **settings):
    """What `call` returns, and the incidents that `run` has found."""
    run = ScriptRun(Settings(**settings), Policy(), folder, investigate)
    return run.run_call(call), run.engine.incidents


def reported(incident):
    """What an incident says of the failure, whoever reported it."""
    event, location = incident.event, incident.location
    chain = [(link.op, link.role, link.line) for link in location.chain]
    return (event.step, event.epoch, event.phase, event.symptom, location.op, location.module,
            location.file, location.line, chain, incident.diagnosis.cause,
            [(f.title, f.status) for f in incident.diagnosis.fixes], incident.action.kind)  # fmt: skip


def line_of(file, mark):
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return next(i for i, text in enumerate(lines, 1) if text.endswith(mark))
