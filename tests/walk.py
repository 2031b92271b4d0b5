"""Which modules a failing step goes through, from the check that refused it to the published incident.

`python tests/walk.py step` and `python tests/walk.py run SCRIPT` print two lists as JSON. "ran" is every module
of the package of which a function was called. "walk" is what a reader follows: modules that were handed
the step itself (its window, failure, replay, origin, evidence, incident) by another module. Inside a stage, or a folder of the two rooms that lead,
only its door counts, modules that define those records (or write them as JSON) do not, and a registry's entries (rules,
experiments) are one; so is lint, which is asked about one line.
"""

import contextlib
import json
import sys
import tempfile

import torch

from stayfinite import Guard
from stayfinite.diagnose.evidence import Evidence
from stayfinite.investigate.investigation import Investigation
from stayfinite.locate.slice import Origin
from stayfinite.records import Incident
from stayfinite.runtime.engine import Engine
from stayfinite.runtime.window import Failure, Replay, ReplayResult, Verdict, Window
from stayfinite.sandbox import compute

HANDED = (Window, Failure, Replay, ReplayResult, Verdict, Origin, Evidence, Incident, Investigation)
DEFINE = {
    "stayfinite.runtime.window",
    "stayfinite.records",
    "stayfinite.plain",
    "stayfinite.diagnose.evidence",
}
LEAD = {"guard", "stayfinite.runtime", "stayfinite.investigate"}
REGISTRIES = ("stayfinite.diagnose.rules", "stayfinite.investigate.experiments")
TOOLS = ("stayfinite.lint", "stayfinite.remedies")
"""Asked one question about a file; each counts once."""


class Walk:
    """Listens between a failed check and the end of its handling; the first such step only."""

    def __init__(self):
        self.ran, self.walk = {}, {}
        self._is_over = False

    def follow(self):
        check, handle = Engine.check, Engine.handle

        def checked(engine, *args, **kwargs):
            failure = check(engine, *args, **kwargs)
            if failure is not None and not self._is_over:
                sys.setprofile(self._on_event)
            return failure

        def handled(engine, *args):
            try:
                return handle(engine, *args)
            finally:
                sys.setprofile(None)
                self._is_over = True

        Engine.check, Engine.handle = checked, handled

    def _on_event(self, frame, event, arg):
        name = frame.f_globals.get("__name__", "")
        if event != "call" or not name.startswith("stayfinite."):
            return
        self.ran[_entry(name)] = None
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if code.co_name.startswith("<") or code.co_filename == "<string>":
            return
        is_handed = any(isinstance(frame.f_locals.get(n), HANDED) for n in names)
        if is_handed and self._is_station(name, _caller(frame.f_back)):
            self.walk[_entry(name)] = None

    def _is_station(self, name, caller):
        if name == caller or name in DEFINE:
            return False
        room = _room(name)
        return room in LEAD or room != _room(caller)


def _room(name):
    """A stage is one room; of those that lead through a failing step every folder is one."""
    parts = name.split(".")
    return ".".join(parts[:-1]) if parts[1] in ("runtime", "investigate") else parts[1]


def _caller(frame):
    """The module of the package that called, past the user's and torch's frames between."""
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("stayfinite."):
        frame = frame.f_back
    return frame.f_globals["__name__"] if frame is not None else "stayfinite.user"


def _entry(name):
    return next((r for r in (*REGISTRIES, *TOOLS) if name.startswith(r)), name)


def guard_step():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    with Guard(model, torch.optim.Adam(model.parameters()), run_dir=tempfile.mkdtemp()) as guard:
        for _ in range(3):
            guard.step(lambda m, b: m(b).pow(2).mean(), torch.randn(8, 4))
        outcome = guard.step(lambda m, b: (m(b) - 100).log().mean(), torch.randn(8, 4))
    assert outcome.incident.location.op == "aten.log"


def run(script):
    from stayfinite.cli import main

    sys.argv = ["stayfinite", "run", "--run-dir", tempfile.mkdtemp(), script]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code


if __name__ == "__main__":
    torch.manual_seed(0)
    compute._untraced = contextlib.nullcontext  # replays are on the walk
    walk = Walk()
    walk.follow()
    guard_step() if sys.argv[1] == "step" else run(sys.argv[2])
    json.dump({"walk": list(walk.walk), "ran": list(walk.ran)}, sys.stdout)
