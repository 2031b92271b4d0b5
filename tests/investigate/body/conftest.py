"""A stage for small trainings: at one of their steps, the body is run again and compared."""

import array
import ast
import logging
import os
import sys
import types
import weakref
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

from stayfinite.investigate.body import NOT_GIVEN, Body, scenes_of_frame
from stayfinite.investigate.body.cut import show
from stayfinite.patches.manager import original_of

BAD_STEP = 3
HERE = os.path.dirname(os.path.abspath(__file__))


def fingerprint(value, seen=None):
    """Everything that can be reached from a value, in a form that can be compared."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type)):
        return repr(value)
    if id(value) in seen:
        return ("seen", seen[id(value)][0])
    seen[id(value)] = (len(seen), value)
    if isinstance(value, torch.Tensor):
        return (
            "tensor",
            0 if isinstance(value, nn.Parameter) else value._version,
            value.detach().double().numpy().tobytes(),
            str(value.dtype),
        )
    if isinstance(value, np.ndarray):
        return ("array", value.tobytes(), value.shape)
    if isinstance(value, (list, tuple, deque)):
        return (type(value).__name__, [fingerprint(v, seen) for v in value])
    if isinstance(value, (set, frozenset)):
        return ("set", sorted(map(repr, value)))
    if isinstance(value, dict):
        parts = [(fingerprint(k, seen), fingerprint(v, seen)) for k, v in value.items()]
        return ("dict", parts, fingerprint(getattr(value, "__dict__", None), seen))
    if isinstance(value, (bytearray, array.array)):
        return ("bytes", bytes(value))
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        inside = {} if frame is None else dict(frame.f_locals)
        return ("generator", frame and frame.f_lasti, fingerprint(inside, seen))
    if isinstance(value, torch.Generator):
        return ("random", value.get_state().numpy().tobytes())
    if isinstance(value, types.FunctionType):
        cells = [c.cell_contents for c in value.__closure__ or () if c != types.CellType()]
        return ("function", fingerprint(cells, seen), fingerprint(value.__dict__, seen))
    if isinstance(value, types.MethodType):
        return ("method", fingerprint(value.__self__, seen))
    if isinstance(value, (types.ModuleType, logging.Logger)) or type(value).__name__ == "Stage":
        return ("module",)
    if hasattr(value, "tell") and hasattr(value, "closed"):
        is_plain = not value.closed and value.seekable()
        return ("file", value.closed, value.tell() if is_plain else None)
    if hasattr(type(value), "__next__") and hasattr(value, "__reduce__"):
        try:
            return ("iterator", repr(value.__reduce__()[1:]))
        except TypeError:
            return ("iterator",)
    slots = [n for c in type(value).__mro__ for n in getattr(c, "__slots__", ())]
    inside = {n: getattr(value, n) for n in slots if hasattr(value, n)}
    inside.update(getattr(value, "__dict__", {}))
    counters = {k: v for k, v in vars(type(value)).items() if isinstance(v, (int, list, dict))}
    return (type(value).__name__, fingerprint(inside, seen), fingerprint(counters, seen))


def everything(scenes):
    """The variables of all scenes that belong to the training."""
    names = {"LOOPS", "stage", "setting", "capsys", "request"}
    return {
        (i, k): fingerprint(v)
        for i, scene in enumerate(scenes)
        if os.path.dirname(scene.file) == HERE  # pytest's own frames hold the whole process
        for k, v in scene.variables.items()
        if not k.startswith(("__", "@")) and k not in names
    }


@dataclass
class Seen:
    """What one replay gave."""

    taken: tuple = ()
    left_out: tuple = ()
    can_bind: bool = False
    is_exact: bool = False
    is_exact_with_batch: bool = False
    num_steps: int = 0
    loss: object = None
    function: str = ""


@dataclass
class Stage:
    depth: int = 0
    """Which of the frames is replayed, 0 for the innermost."""
    num_items: int = 1
    is_replaying: bool = False
    seen: Seen | None = None
    optimizers: list = field(default_factory=list)
    batches: list = field(default_factory=list)
    num_steps: int = 0
    loss_name: str = "loss"
    error: object = None

    def remember(self):
        """An iteration begins."""
        if self.is_replaying:
            return
        self.batches = []
        self.rng = torch.get_rng_state()
        self.weights = [p.detach().clone() for p in self.params]
        self.grads = [None if p.grad is None else p.grad.clone() for p in self.params]

    @property
    def params(self):
        return [p for o in self.optimizers for g in o.param_groups for p in g["params"]]

    def put(self, weights, grads, rng):
        with torch.no_grad():
            for p, w, g in zip(self.params, weights, grads):
                p.data = w.clone()  # as a replay's caller does: the version is not counted
                p.grad = None if g is None else g.clone()
        torch.set_rng_state(rng)

    def investigate(self, frame):
        scenes = scenes_of_frame(frame)
        scene, outer = scenes[self.depth], scenes[self.depth + 1 :]
        body = Body.of(scene, outer, lambda obj: any(obj is o for o in self.optimizers))
        self.seen = Seen(function=scene.function)
        if body is None:
            return
        now = [p.detach().clone() for p in self.params], _grads(self.params), torch.get_rng_state()
        before = everything(scenes)
        cut = body.plan()._cut
        paths = {p for u in cut.needed for p in u.access.writes if "<" not in p[0]}
        self.seen.taken = tuple(sorted({show(p) for p in paths}))
        gone = [u for u in cut.all if u not in cut.kept]
        self.seen.left_out = tuple(ast.unparse(u.node).splitlines()[0] for u in gone)
        self.seen.can_bind = body.can_bind(self.num_items)
        self.seen.is_exact = self.replay(body, NOT_GIVEN, now[1])
        if self.seen.can_bind:
            batch = self.batches[-1] if self.num_items == 1 else self.batches[-self.num_items :]
            self.seen.is_exact_with_batch = self.replay(body, batch, now[1])
        self.put(*now)
        after = everything(scenes)
        changed = [k for k in before if before[k] != after[k]]
        assert not changed, "the replay was felt"

    def replay(self, body, batch, grads):
        self.put(self.weights, self.grads, self.rng)
        self.is_replaying = True
        self.seen.num_steps = 0
        try:
            space = body.run(batch)
        except RuntimeError as error:
            self.error = error
            return False
        finally:
            self.is_replaying = False
        self.seen.loss = space.get(self.loss_name)
        again = _grads(self.params)
        return len(again) == len(grads) and all(
            (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
            for a, b in zip(again, grads)
        )

    def optimizer(self, params):
        made = Watched(params, lr=0.05)
        STAGES[id(made)] = weakref.ref(self)
        self.optimizers.append(made)
        self.remember()
        return made

    def loader(self, items):
        made = Loader(items)
        STAGES[id(made)] = weakref.ref(self)
        return made


STAGES: dict = {}
"""Weak references, which a replay does not copy: what its steps note is seen outside."""


def _grads(params):
    return [None if p.grad is None else p.grad.clone() for p in params]


class Watched(torch.optim.SGD):
    """At one step of the last optimizer that was made, the body is run again."""

    def step(self, closure=None):
        self = original_of(self)
        stage = STAGES[id(self)]()
        if stage.is_replaying:
            stage.seen.num_steps += 1
        elif self is stage.optimizers[-1]:
            stage.num_steps += 1
            if stage.num_steps == BAD_STEP:
                stage.investigate(sys._getframe(1))
        if not stage.is_replaying or self is not stage.optimizers[-1]:
            super().step(closure)
        if self is stage.optimizers[-1]:
            stage.remember()


class Loader:
    """Gives batches, as a loader of torch does, and remembers them."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        stage = STAGES[id(self)]()
        for item in self.items:
            stage.batches.append(item)
            yield item


@pytest.fixture
def stage():
    torch.manual_seed(0)
    made = Stage()
    yield made
    STAGES.clear()


@pytest.fixture
def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


@pytest.fixture
def items():
    made = torch.Generator().manual_seed(2)
    pairs = [torch.randn(6, 4, generator=made) for _ in range(6)]
    return [(x, x.sum(1, keepdim=True)) for x in pairs]


def pytest_generate_tests(metafunc):
    """Each function `loop_…` of a test module is a case; its keyword defaults say what to expect."""
    if "loop" in metafunc.fixturenames:
        found = {k: v for k, v in vars(metafunc.module).items() if k.startswith("loop_")}
        metafunc.parametrize("loop", found.values(), ids=[n[5:] for n in found])


@pytest.fixture
def check(setting, stage):
    """Run a loop on the stage; the replay has to be what the loop expects."""

    def run(loop):
        want = {"can_bind": True, "is_exact": True, "num_items": 1, "steps": 1, "depth": 0}
        want |= loop.__kwdefaults__ or {}
        stage.depth, stage.num_items = want["depth"], want["num_items"]
        loop(*setting)
        seen = stage.seen
        assert seen is not None
        assert seen.is_exact == want["is_exact"], (seen, stage.error)
        assert seen.can_bind == want["can_bind"], seen
        assert seen.is_exact_with_batch == want["can_bind"], (seen, stage.error)
        assert set(seen.taken) == set(want.get("taken", seen.taken))
        assert set(want.get("left_out", ())) <= set(seen.left_out)
        assert seen.num_steps == want["steps"]

    return run


@pytest.fixture
def setting(stage, model, items):
    """Model, optimizer and loader of a training on the stage."""
    return model, stage.optimizer(model.parameters()), stage.loader(items)
