"""Which tensors a loop carries, and what is restored after a bad step."""

import linecache
import sys

import pytest
import torch

from stayfinite.runtime.carried import Carried
from stayfinite.runtime.carried_names import carried_names
from stayfinite.runtime.frames import StepPlace

LOOPS = """
for x, y in loader:
    hidden = detached(hidden)
    out, hidden = model(x, hidden)
    loss = measure(out, y) + fixed
    loss.backward()
    step()
    total += loss
    average = 0.9 * average + loss
for x in loader:
    state = torch.zeros(3)
    for part in x:
        state = cell(part, state)
    state.sum().backward()
for x in loader:
    loss, memory[0] = train(x, memory[0])
def step(self, x):
    self.h, seen = self.cell(x, self.h)
    local = seen
    self.count = 1
    self.loss(self.h, local).backward()
"""


@pytest.fixture
def file():
    linecache.cache["loops.py"] = (len(LOOPS), None, LOOPS.splitlines(True), "loops.py")
    carried_names.cache_clear()
    yield "loops.py"
    del linecache.cache["loops.py"]
    carried_names.cache_clear()


@pytest.mark.parametrize(
    ("line", "carried"),
    [(7, [("hidden",)]), (14, []), (16, [("memory", "[0")]), (21, [("self", ".h")]), (40, [])],
)
def test_only_what_the_loss_takes_from_the_iteration_before_is_carried(file, line, carried):
    assert list(carried_names(file, line).carried) == carried


def a_loop(batches, at_step, use=lambda old, new: new):
    """`at_step` is called where the optimizer would step."""
    carried, place, seen = Carried(), StepPlace(), []
    hidden = torch.zeros(2)
    for x in batches:
        carried.note()
        hidden = use(hidden, hidden * 0.5 + x)
        hidden.sum().requires_grad_().backward()
        place.note()
        place.code, place.instruction = sys._getframe().f_code, 0
        carried.look(place)
        at_step(carried, x)
        seen.append(hidden)
    return seen


def test_a_state_that_a_bad_batch_has_spoiled_is_as_before_it():
    bad = torch.full((2,), float("nan"))

    def at_step(carried, x):
        if x is bad:
            carried.restore([x])

    seen = a_loop([torch.ones(2), bad, torch.ones(2)], at_step)
    assert [h.tolist() for h in seen] == [[1, 1], [1, 1], [1.5, 1.5]]


def test_a_batch_is_never_written_to():
    bad = torch.full((2,), float("nan"))
    a_loop([torch.ones(2), bad], lambda carried, x: carried.restore([x]), lambda old, new: bad)
    assert bad.isnan().all()


def test_a_loop_that_carries_nothing_costs_nothing():
    carried, place = Carried(), StepPlace()
    for x in torch.ones(2, 3):
        loss = (x * 2).sum().requires_grad_()
        loss.backward()
        place.code, place.instruction = sys._getframe().f_code, 0
        carried.look(place)
    assert not carried.is_needed
