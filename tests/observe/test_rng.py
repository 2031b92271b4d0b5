"""Random states are kept cheaply and come back exactly."""

import random

import numpy as np
import pytest
import torch

from stayfinite.observe.rng import RngMemory, RngState


def draw():
    return torch.rand(3).tolist(), random.random(), np.random.rand()


def test_all_generators_come_back():
    state = RngState.now()
    first = draw()
    assert draw() != first
    state.restore()
    assert draw() == first


def test_a_captured_state_comes_back_while_the_generators_are_in_use():
    memory = RngMemory()
    for _ in range(50):
        state = memory.capture()
        first = draw()
        state.restore()
        assert draw() == first


def test_torch_alone_is_always_captured():
    memory = RngMemory()
    for _ in range(100):
        state = memory.capture()
        first = torch.rand(2).tolist()
        state.restore()
        assert torch.rand(2).tolist() == first


def test_quiet_generators_are_not_read_every_time(monkeypatch):
    memory = RngMemory()
    reads = []
    original = random.getstate
    monkeypatch.setattr(random, "getstate", lambda: reads.append(1) or original())
    for _ in range(64):
        memory.capture()
    assert 0 < len(reads) < 16


def test_quiet_generators_stay_as_they_are():
    memory = RngMemory()
    before = random.getstate()
    for state in [memory.capture() for _ in range(64)]:
        state.restore()
    assert random.getstate() == before


@pytest.mark.parametrize("draws", [random.random, np.random.rand])
def test_a_generator_that_moved_unseen_is_not_turned_back(draws):
    """Quiet for long, then one draw (a shuffle at the start of an epoch), then a bad step: what
    was drawn in a good step must not be drawn again."""
    memory = RngMemory()
    for _ in range(20):
        memory.capture()
    draws()
    for _ in range(3):
        state = memory.capture()
    wanted = random.getstate(), np.random.get_state()[2]
    state.restore()
    assert (random.getstate(), np.random.get_state()[2]) == wanted


def test_capturing_draws_nothing():
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    wanted = draw()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    RngMemory().capture()
    RngState.now()
    assert draw() == wanted
