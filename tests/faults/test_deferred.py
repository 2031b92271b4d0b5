"""The deferred mode: the flag stays on the device and is read one step late."""

from contextlib import nullcontext

import pytest
import torch
from tests.faults.training import BAD, VALUES, Fault, batches, loop, loss_of
from tests.sweep import sweep
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from stayfinite import Guard, Settings
from stayfinite.runtime.deferral import Deferral

pytestmark = pytest.mark.usefixtures("on_an_accelerator")
DEFERRED = Settings(diagnose=False, deferred=True)
IMMEDIATE = Settings(diagnose=False)


@pytest.fixture(params=[True, False], ids=["put off", "in memory"])
def on_an_accelerator(request, monkeypatch):
    """As it is there, tried on the host; and as it is on the host."""
    monkeypatch.setattr(Deferral, "defers_on_host", request.param)
    return request.param


def make(fault, kind="adamw"):
    from tests.faults.training import Net

    torch.manual_seed(3)
    model = Net(fault)
    cls = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[kind]
    return model, cls(model.parameters(), lr=0.01, fused=True)


def train(fault, form, settings, kind="adamw"):
    model, optimizer = make(fault, kind)
    with Guard(model, optimizer, settings=settings) as guard:
        if form == "step":
            for batch in batches(fault):
                guard.step(loss_of, batch)
        else:
            loop(guard(batches(fault)), model, optimizer, None)
    state = [v for s in optimizer.state.values() for v in s.values()]
    return guard.incidents, [*model.state_dict().values(), *state]


PLACES = ("input", "label", "activation", "loss", "gradient")


@sweep(form=["step", "loader"], place=PLACES, value=VALUES)
def test_same_incident_one_step_later(form, place, value):
    fault = Fault(place, value)
    incidents, state = train(fault, form, DEFERRED)
    assert [i.event.step for i in incidents] == [BAD]
    wanted, _ = train(fault, form, IMMEDIATE)
    found, expected = incidents[0], wanted[0]
    assert (found.event.phase, found.event.symptom) == (
        expected.event.phase,
        expected.event.symptom,
    )
    assert (found.location.op, found.location.module, found.location.line) == (
        expected.location.op,
        expected.location.module,
        expected.location.line,
    )
    assert all(torch.isfinite(t).all() for t in state)


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("form", ["step", "loader"])
def test_the_weights_are_those_of_the_immediate_mode(form, kind):
    fault = Fault("activation", "nan")
    _, deferred = train(fault, form, DEFERRED, kind)
    _, immediate = train(fault, form, IMMEDIATE, kind)
    assert all(torch.equal(a, b) for a, b in zip(deferred, immediate))


@pytest.mark.parametrize("form", ["step", "loader"])
@pytest.mark.parametrize("at", [0, 8])
def test_first_and_last_step(form, at):
    incidents, state = train(Fault("gradient", "+inf", at=at), form, DEFERRED)
    assert [i.event.step for i in incidents] == [at]
    assert all(torch.isfinite(t).all() for t in state)


@pytest.mark.parametrize("form", ["step", "loader"])
def test_a_healthy_twin_is_silent(form):
    incidents, _ = train(Fault("activation", "nan", is_healthy=True), form, DEFERRED)
    assert incidents == []


def test_an_optimizer_that_cannot_skip_on_the_device_is_still_protected(on_an_accelerator):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.1)
    message = (
        r"^deferred checks need a fused Adam, AdamW or SGD \(fused=True\), got RMSprop; "
        "its steps are checked at once$"
    )
    said = pytest.warns(UserWarning, match=message) if on_an_accelerator else nullcontext()
    with (
        said,
        Guard(model, optimizer, settings=DEFERRED) as guard,
    ):
        for x in (torch.ones(2, 2), torch.full((2, 2), float("nan")), torch.ones(2, 2)):
            guard.step(lambda m, x: m(x).pow(2).mean(), x)
    assert [i.event.step for i in guard.incidents] == [1]
    assert all(torch.isfinite(p).all() for p in model.parameters())


class Syncs(TorchDispatchMode):
    """Counts what would make the host wait for an accelerator."""

    NAMES = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name.split("::")[-1] in self.NAMES
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("form", ["step", "loader"])
@pytest.mark.parametrize(("settings", "most"), [(DEFERRED, 0), (IMMEDIATE, 1)])
def test_host_syncs_of_a_healthy_step(form, settings, most):
    """A plain loop of this kind has none of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    data = [torch.randn(3, 4) for _ in range(12)]
    counts = []

    def step(x):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    with Guard(model, optimizer, settings=settings) as guard:
        stream = data if form == "step" else guard(data)
        for x in stream:
            with Syncs() as syncs:
                guard.step(lambda m, x: m(x).pow(2).mean(), x) if form == "step" else step(x)
            counts.append(syncs.count)
    # Deep checks come within their budget; most steps have none.
    assert sorted(counts)[len(counts) // 2] <= most
    with Syncs() as syncs:
        model(data[0]).sum().item()
    assert syncs.count == 1, "the count would not have seen a sync"
