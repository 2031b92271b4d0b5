"""Exceptions thrown into our own functions at random, seeded: no training may feel them.

    python -m tests.campaign_errors --count 2000 --seed 1

Each training is small: dropout, batch norm, Adam, a schedule, perhaps one batch of NaN. A first run
counts which of our functions are called in it, then one of them raises: at one of its calls, or at
each. Functions that the training calls directly (`guard.step`, a patch) have nobody of ours above them
who could catch; everything below them counts. The training must go through, and its state must be that
of plain Python or that of a run without the bad batch, bit for bit.
"""

import argparse
import collections
import contextlib
import gc
import io
import os
import pathlib
import random
import sys
import tempfile
import time
import types
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim import Optimizer

import stayfinite
from stayfinite import Guard, Settings
from stayfinite.investigate.entry import investigate
from stayfinite.locate.trace import OpTrace
from stayfinite.patches import gradients, loaders, training
from stayfinite.patches.manager import _DISPATCH, Subscribers, _Layer, table
from stayfinite.recover.policy import Policy
from stayfinite.runtime.loop.driver import LoopDriver
from stayfinite.runtime.script import run_script
from stayfinite.runtime.script.run_script import ScriptRun

OURS = str(pathlib.Path(stayfinite.__file__).parent) + os.sep
ROOMS = ("runtime", "investigate", "patches", "detect", "recover", "report", "locate", "sandbox")
FORMS = ("step", "loader", "run")
NUM_BATCHES = 6
ERRORS = {
    "RuntimeError": lambda: RuntimeError("thrown"),
    "MemoryError": MemoryError,
    "OutOfMemoryError": lambda: torch.OutOfMemoryError("thrown"),
    "KeyError": lambda: KeyError("thrown"),
    "RecursionError": lambda: RecursionError("thrown"),
    "AttributeError": lambda: AttributeError("thrown"),
    "AssertionError": AssertionError,
    "OSError": lambda: OSError(28, "no space left"),
    "ZeroDivisionError": lambda: ZeroDivisionError("thrown"),
    "StopIteration": StopIteration,
    "UnicodeError": lambda: UnicodeError("thrown"),
}


@dataclass(frozen=True)
class Training:
    """One of the trainings; `bad` is the batch that is NaN."""

    form: str
    bad: int | None
    diagnoses: bool

    def __str__(self):
        what = "healthy" if self.bad is None else f"batch {self.bad} bad"
        return f"{self.form}, {what}, {'diagnosed' if self.diagnoses else 'located'}"


TRAININGS = [
    *(Training(form, bad, False) for form in FORMS for bad in (None, 0, 2, 5)),
    *(Training(form, 2, True) for form in FORMS),
]


@dataclass(frozen=True)
class Throw:
    """What is raised where: at call number `at` of `code`, or at each call where that is None."""

    code: types.CodeType
    at: int | None
    error: str

    def __str__(self):
        place = self.code.co_filename.removeprefix(OURS)
        when = "each call" if self.at is None else f"call {self.at}"
        return f"{self.error} at {when} of {place}:{self.code.co_qualname}"


@dataclass
class Parts:
    """What a training trains with; one that runs as a script leaves it here."""

    model: nn.Module = field(
        default_factory=lambda: nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 1)
        )
    )
    optimizer: torch.optim.Optimizer = None
    scheduler: object = None

    def __post_init__(self):
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)

    def remembered(self):
        """All that a training leaves behind, as bytes."""
        found = [as_bytes(v) for v in self.model.state_dict().values()]
        for p in self.model.parameters():
            found += [as_bytes(v) for v in self.optimizer.state[p].values()]
        rates = [g["lr"] for g in self.optimizer.param_groups]
        return found, rates, self.scheduler.last_epoch, torch.get_rng_state().numpy().tobytes()


def as_bytes(tensor):
    """NaN is NaN, whatever its sign and payload."""
    if tensor.is_floating_point():
        tensor = torch.where(tensor.isnan(), torch.full_like(tensor, float("nan")), tensor)
    return tensor.numpy().tobytes()


def batches(bad, is_left_out=False):
    made = torch.Generator().manual_seed(7)
    found = [torch.randn(5, 4, generator=made) for _ in range(NUM_BATCHES)]
    if bad is not None:
        found[bad][1, 2] = float("nan")
        if is_left_out:
            del found[bad]
    return found


def loss_of(model, batch):
    return (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()


def loop(parts, loader):
    for batch in loader:
        parts.optimizer.zero_grad()
        loss_of(parts.model, batch).backward()
        parts.optimizer.step()
        parts.scheduler.step()


def as_loader(form, data):
    return torch.utils.data.DataLoader(data, batch_size=None) if form == "run" else data


last = []
"""What the script of the run form has trained, or before it the loader."""
under_way = []
"""Not empty from the training's own first line on."""


def train(training):
    """The training under protection; what it left behind."""
    settings = Settings(diagnose=training.diagnoses)
    data = as_loader(training.form, batches(training.bad))
    under_way.clear()
    torch.manual_seed(3)
    with tempfile.TemporaryDirectory() as folder:
        if training.form == "run":
            return under_run(data, settings, pathlib.Path(folder))
        parts = Parts()
        guard = Guard(
            parts.model, parts.optimizer, parts.scheduler, settings=settings, run_dir=folder
        )
        user_code(parts, guard, data, training.form)
    return parts.remembered()


def user_code(parts, guard, data, form):
    """From here on everything of ours may fail."""
    under_way.append(form)
    if form == "step":
        for batch in data:
            guard.step(loss_of, batch)
    else:
        loop(parts, guard(data))
    guard.close()


def script_code():
    """What the script of the run form does."""
    under_way.append("run")
    parts = Parts()
    loader, last[:] = last[0], [parts]
    loop(parts, loader)


def under_run(data, settings, folder):
    script = folder / "train.py"
    script.write_text("from tests.campaign_errors import script_code\nscript_code()\n")
    kept = sys.argv, list(sys.path), sys.modules["__main__"]
    last[:] = [data]
    try:
        code = ScriptRun(settings, Policy(), folder / "run", investigate).run_file(str(script), [])
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = kept
    if code:
        raise AssertionError(f"exit code {code}")
    return last[0].remembered()


def plain(form, bad, is_left_out):
    torch.manual_seed(3)
    parts = Parts()
    loop(parts, as_loader(form, batches(bad, is_left_out)))
    return parts.remembered()


DOORS = {
    _DISPATCH,
    Subscribers.here.__code__,
    training._whose.__code__,
    gradients._here.__code__,
    _Layer._call_below.__code__,
    loaders._noted.__code__,
    LoopDriver.is_replaying.fget.__code__,
}
"""Through these the training's own calls go; there is nothing in them that could fail."""


LAST_RESORTS = {
    "close",
    "_close",
    "_close_waiting",
    "close_all",
    "leave",
    "remove",
    "_put_back",
    "put_back",
    "restore",
    "_restore",
    "_unlisten",
    "_put",
    "drop",
    "end",
    "apply",
}
"""Where one of these fails at each call, nothing at all can be put back, or the step itself cannot be made; at any
one call it may fail."""


def is_ours(code):
    """The public object and the function that stands where a patched one stood are what the training
    calls; the firewall is what catches."""
    is_door = code.co_filename.endswith(("guard.py", "firewall.py")) or code in DOORS
    return code.co_filename.startswith(OURS) and not is_door


THEIRS = {f.__code__ for f in (user_code, script_code, loop)}


def has_ours_above(frame):
    """Whether the training has called something of ours that has called this."""
    above = frame.f_back
    if above is not None and above.f_code in DOORS:
        return False  # a patch, which the training or torch calls
    while above is not None and above.f_code not in THEIRS:
        if is_ours(above.f_code):
            return True
        above = above.f_back
    return False


class Count:
    """Counts the calls of our functions from the training's first line on."""

    def __init__(self):
        self.counts = collections.Counter()
        self.direct = set()

    def __call__(self, frame, event, arg):
        code = frame.f_code
        if event != "call" or not under_way or not is_ours(code):
            return
        if has_ours_above(frame):
            self.counts[code] += 1
        else:
            self.direct.add(code)

    def __enter__(self):
        self._before = sys.getprofile()
        sys.setprofile(self)
        return self

    def __exit__(self, *exc):
        sys.setprofile(self._before)


def _detour(*args, **kwargs):
    call = "the hook"
    return call(*args, **kwargs)


class Thrown:
    """While this lasts, a function raises: at one of its calls, or at each."""

    def __init__(self, throw, holders):
        self._throw = throw
        self._holders = holders
        self._num_seen = 0
        self.count = 0

    def __enter__(self):
        for holder in self._holders:
            holder.__code__ = self._code(self._hook(holder))
        return self

    def __exit__(self, *exc):
        for holder in self._holders:
            holder.__code__ = self._throw.code

    def _hook(self, holder):
        code = self._throw.code
        own = types.FunctionType(
            code, holder.__globals__, code.co_name, holder.__defaults__, holder.__closure__
        )
        own.__kwdefaults__ = holder.__kwdefaults__

        def hook(*args, **kwargs):
            error = self._error(sys._getframe(1))
            if error is not None:
                raise error
            return own(*args, **kwargs)

        # Who looks for the training's frames must not take this for one of them.
        hook.__code__ = hook.__code__.replace(co_filename=code.co_filename)
        return hook

    def _code(self, hook):
        made, like = _detour.__code__, self._throw.code
        constants = tuple(hook if c == "the hook" else c for c in made.co_consts)
        return made.replace(
            co_consts=constants, co_freevars=like.co_freevars, co_filename=like.co_filename
        )

    def _error(self, frame):
        """What this call raises, if it does."""
        if not under_way or not has_ours_above(frame):
            return None
        self._num_seen += 1
        if self._throw.at not in (None, self._num_seen):
            return None
        self.count += 1
        return ERRORS[self._throw.error]()


class Campaign:
    """Draws trainings and throws; what a training must end with is computed once for each."""

    def __init__(self, seed):
        self._seed = seed
        self._num_drawn = 0
        self._called = {}
        self._allowed = {}

    def draw(self):
        """A training, and what is thrown into it."""
        # Made anew each time: a generator that is held is the training's, and put back with it.
        self._num_drawn += 1
        rng = random.Random(f"{self._seed} {self._num_drawn}")
        training = rng.choice(TRAININGS)
        counts, direct = self._calls_of(training)
        code = rng.choice(list(counts))
        # One that asks for its caller's frame cannot be called by way of another.
        is_always = "_getframe" in code.co_names or rng.random() < 0.3
        is_always = is_always and code not in direct and code.co_name not in LAST_RESORTS
        at = None if is_always else rng.randint(1, counts[code])
        return training, Throw(code, at, rng.choice(list(ERRORS)))

    def _calls_of(self, training):
        """Our functions that are called in it, with how often, and those that it calls directly."""
        if training not in self._called:
            quietly(train, training)  # what is imported late is imported now
            with Count() as seen:
                quietly(train, training)
            self._find_holders()
            ordered = sorted(
                seen.counts, key=lambda c: (c.co_filename, c.co_firstlineno, c.co_name)
            )
            counts = {
                c: seen.counts[c] for c in ordered if c in self._holders and room_of(c) in ROOMS
            }
            self._called[training] = counts, seen.direct
        return self._called[training]

    def _find_holders(self):
        """The functions of each code; what is made anew for each call is not among them."""
        self._holders = collections.defaultdict(list)
        for each in gc.get_objects():
            if type(each) is types.FunctionType and is_ours(each.__code__):
                self._holders[each.__code__].append(each)

    def _may_end_with(self, training):
        key = training.form, training.bad
        if key not in self._allowed:
            found = [plain(*key, False)]
            if training.bad is not None:
                found.append(plain(*key, True))
            self._allowed[key] = found
        return self._allowed[key]

    def run(self, training, throw):
        """(what is wrong, in words; whether anything was thrown)."""
        allowed = self._may_end_with(training)
        thrown = Thrown(throw, self._holders[throw.code])
        wrong, before = "", left_behind()
        try:
            with thrown:
                found = quietly(train, training)
            if found not in allowed:
                wrong = "ended with another state"
            elif left := [x for x in left_behind() if x not in before]:
                wrong = f"left behind: {left}"
        except Exception as error:
            wrong = f"ended with {type(error).__name__}: {error}"
        finally:
            for run in list(run_script._listening):
                run.leave()  # one that was left open must not meddle with the next training
        return wrong, thrown.count > 0


def left_behind():
    """What is still in the process after a training is over."""
    steps = sys.modules[Optimizer.__module__]
    hooks = (
        nn.modules.module._global_forward_hooks,
        nn.modules.module._global_forward_pre_hooks,
        steps._global_optimizer_pre_hooks,
        steps._global_optimizer_post_hooks,
    )
    patches = [f"{r.owner}.{r.name}" for r in table()]
    return [*patches, *(h for each in hooks for h in each.values())]


def room_of(code):
    return code.co_filename.removeprefix(OURS).split(os.sep)[0]


def quietly(call, *args):
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        return call(*args)


@contextlib.contextmanager
def as_users_have_it():
    """Our own tests want an investigation that fails to fail; a user's training goes on."""
    before, OpTrace.is_strict = OpTrace.is_strict, False
    try:
        yield
    finally:
        OpTrace.is_strict = before


def campaign(count, seed, say=lambda line: None):
    """(exceptions that were thrown, [(training, throw, what is wrong)])."""
    found, num_thrown = [], 0
    one = Campaign(seed)
    with as_users_have_it():
        while num_thrown < count:
            training, throw = one.draw()
            wrong, has_thrown = one.run(training, throw)
            num_thrown += has_thrown
            if wrong and not has_thrown:
                wrong += " (though nothing was thrown)"
            if wrong:
                found.append((training, throw, wrong))
                say(f"WRONG {training}: {throw}: {wrong}")
    return num_thrown, found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    print(f"seed {options.seed}", flush=True)
    count, found = campaign(options.count, options.seed, lambda line: print(line, flush=True))
    print(f"{count} thrown, {len(found)} wrong, {time.perf_counter() - start:.0f} s")
    sys.exit(bool(found))


if __name__ == "__main__":
    # Under its own name, so that the script of the run form meets this very module.
    sys.modules["tests.campaign_errors"] = sys.modules["__main__"]
    main()
