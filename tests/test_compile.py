"""torch.compile: as many graphs with us as without us, no recompilation; a replay runs eagerly."""

import pytest
import torch
from tests.integrations.watched import line_of
from tests.launch import ROOT, forked
from torch import nn
from torch._dynamo.utils import counters

from stayfinite import Guard, Settings

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("compiler")]
QUICK = Settings(diagnose=False)
BAD = 3
INDUCTOR = [pytest.mark.slow, pytest.mark.xdist_group("inductor")]
"""Whoever is first pays for the imports of the compiler."""


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        h = torch.log(x.abs().sum(-1, keepdim=True))  # HERE
        return self.last(torch.tanh(self.first(x))) + h


def loss_of(model, x):
    return model(x).pow(2).mean()


def batches(is_bad):
    torch.manual_seed(1)
    found = [torch.randn(6, 3) for _ in range(5)]
    if is_bad:
        found[BAD][2] = 0.0
    return found


def parts(what, backend):
    """(model, loss function, step or None) with one of them compiled."""
    torch.manual_seed(0)
    model, how = Net(), {"backend": backend, "fullgraph": True}
    if what == "model":
        return torch.compile(model, **how), loss_of, None
    if what == "loss":
        return model, torch.compile(loss_of, **how), None

    def step(model, optimizer, x):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, loss_of, torch.compile(step, backend=backend)


def train(what, backend, form, is_bad=False):
    """(losses, incidents, what the compiler has counted)"""
    torch._dynamo.reset()
    counters.clear()
    model, loss_fn, step = parts(what, backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = Guard(model, optimizer, settings=QUICK) if form != "plain" else None
    losses = []
    for x in guard(batches(is_bad)) if form == "loop" else batches(is_bad):
        if form == "step":
            losses.append(guard.step(loss_fn, x).loss)
        elif step is not None:
            losses.append(step(model, optimizer, x).item())
        else:
            optimizer.zero_grad()
            loss = loss_fn(model, x)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    if guard is not None:
        guard.close()
    graphs = counters["stats"]["unique_graphs"], counters["stats"]["calls_captured"]
    breaks = dict(counters["graph_break"]), dict(counters["recompiles"])
    return losses, guard.incidents if guard is not None else [], (graphs, breaks)


CASES = [
    ("model", "eager", "step"),
    ("model", "eager", "loop"),
    ("loss", "eager", "step"),
    ("loss", "aot_eager", "loop"),
    ("model", "aot_eager", "step"),
    pytest.param("model", "inductor", "loop", marks=INDUCTOR),
    pytest.param("loss", "inductor", "step", marks=INDUCTOR),
]


@pytest.mark.parametrize(("what", "backend", "form"), CASES)
def test_as_many_graphs_as_without_us(what, backend, form):
    plain, _, counted = train(what, backend, "plain")
    watched, incidents, counted_with_us = train(what, backend, form)
    assert counted_with_us == counted
    assert counted[0][0] > 0
    assert watched == plain
    assert incidents == []


@pytest.mark.parametrize(("what", "backend", "form"), CASES)
def test_a_bad_step_is_replayed_eagerly_and_located(what, backend, form):
    _, (incident,), counted = train(what, backend, form, is_bad=True)
    assert incident.event.step == BAD
    assert (incident.location.op, incident.location.line) == (
        "aten.log",
        line_of(__file__, "# HERE"),
    )
    assert incident.location.is_reproduced
    _, _, without_a_bad_step = train(what, backend, form)
    assert counted == without_a_bad_step  # a replay compiles nothing


def test_a_whole_compiled_step_has_as_many_graphs():
    """In a process of its own: what was compiled before has a say in where a region breaks."""
    code = (
        "from tests.test_compile import train\n"
        "counted = [train('whole step', 'eager', how)[2] for how in ('plain', 'loop')]\n"
        "assert counted[0] == counted[1], counted\n"
    )
    done = forked(["-c", code], ROOT)
    assert done.code == 0, done.err


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_bad_step_of_a_whole_compiled_step_is_left_out_and_located(backend):
    losses, (incident,), _ = train("whole step", backend, "loop", is_bad=True)
    assert (incident.event.step, incident.action.kind) == (BAD, "skipped")
    assert incident.location.op == "aten.log"
    assert incident.location.line == line_of(__file__, "# HERE")
    healthy, _, _ = train("whole step", backend, "loop")
    assert losses[:BAD] == healthy[:BAD] and torch.isfinite(torch.tensor(losses[BAD + 1]))
