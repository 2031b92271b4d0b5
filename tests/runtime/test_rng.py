"""Random states are kept cheaply and come back exactly."""

import random

import numpy as np
import pytest
import torch

from stayfinite.runtime.rng import RngMemory, RngState


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


def test_torch_alone_comes_back_too():
    memory = RngMemory()
    for _ in range(100):
        state = memory.capture()
        first = torch.rand(2).tolist()
        state.restore()
        assert torch.rand(2).tolist() == first


def test_quiet_generators_are_not_copied_again():
    memory = RngMemory()
    first = memory.capture()
    assert all(memory.capture() is first for _ in range(64))


@pytest.mark.parametrize(
    "move",
    [
        lambda: torch.rand(1),
        lambda: torch.rand(624),
        lambda: torch.rand(2 * 624),
        lambda: torch.rand(1, dtype=torch.float64),
        lambda: torch.randn(1),
        lambda: torch.randn(1, dtype=torch.float64),
        lambda: torch.randn(100),
        lambda: torch.randperm(5),
        lambda: torch.randint(3, (2,)),
        lambda: torch.nn.functional.dropout(torch.ones(8)),
        lambda: torch.multinomial(torch.ones(4), 2),
        lambda: torch.manual_seed(3),
        random.random,
        lambda: random.shuffle([1, 2, 3]),
        lambda: random.seed(5),
        lambda: random.gauss(0, 1),
        np.random.rand,
        np.random.randn,
        lambda: np.random.randint(5),
        lambda: np.random.seed(5),
    ],
)
def test_whatever_moves_a_generator_is_noticed(move):
    """Twice in a row: of a pair of normal numbers the second moves nothing but a flag."""
    memory = RngMemory()
    for _ in range(2):
        before = memory.capture()
        assert memory.capture() is before
        move()
        after = memory.capture()
        assert after is not before
        wanted = draw()
        after.restore()
        assert draw() == wanted


@pytest.mark.parametrize("seed", [random.seed, lambda n: np.random.seed([n, 1])])
def test_a_second_seed_before_any_draw_is_noticed(seed):
    """The first word of the state and the position are the same after every such seeding."""
    memory = RngMemory()
    seed(1)
    before = memory.capture()
    seed(2)
    assert memory.capture() is not before


def test_without_a_look_at_the_position_every_state_is_copied(monkeypatch):
    monkeypatch.setattr("stayfinite.runtime.rng._torch_areas", lambda: None)
    memory = RngMemory()
    for _ in range(3):
        state = memory.capture()
        wanted = draw()
        state.restore()
        assert draw() == wanted


def test_another_generator_of_numpy_is_not_mistaken_for_the_first():
    memory = RngMemory()
    memory.capture()
    home = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.MT19937(7))
    try:
        for _ in range(3):
            state = memory.capture()
            wanted = np.random.rand()
            state.restore()
            assert np.random.rand() == wanted
    finally:
        np.random.set_bit_generator(home)


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


def test_generators_of_one_s_own_go_back_too():
    import numpy

    own = torch.Generator().manual_seed(1)
    mine, theirs = random.Random(2), numpy.random.default_rng(3)
    older = numpy.random.RandomState(4)
    memory = RngMemory()
    memory.watch([own, mine, theirs, older])

    def draw():
        return (
            torch.rand(2, generator=own).tolist(), mine.random(), theirs.random(), older.rand(),
            random.random(),
        )  # fmt: skip

    state = memory.capture()
    first = draw()
    assert not state.is_same(state.current())
    state.restore()
    assert state.is_same(state.current())
    assert draw() == first
    assert draw() != first


@pytest.mark.parametrize(
    "make, move",
    [
        (lambda: torch.Generator().manual_seed(1), lambda g: torch.rand(1, generator=g)),
        (lambda: torch.Generator().manual_seed(1), lambda g: torch.randn(1, generator=g)),
        (lambda: random.Random(1), lambda g: g.random()),
        (lambda: random.Random(1), lambda g: g.gauss(0, 1)),
        (lambda: np.random.default_rng(1), lambda g: g.random()),
        (lambda: np.random.default_rng(1), lambda g: g.integers(5, dtype=np.int32)),
        (lambda: np.random.RandomState(1), lambda g: g.rand()),
        (lambda: np.random.RandomState(1), lambda g: g.randn()),
        (lambda: np.random.Generator(np.random.Philox(1)), lambda g: g.random()),
    ],
)
def test_a_generator_of_one_s_own_comes_back_each_time(make, move):
    """Those that can be looked at are copied only when they have moved: by a pair's second half, too."""
    own = make()
    memory = RngMemory()
    memory.watch([own, np.random.mtrand._rand])  # NumPy's global one is captured anyway
    for _ in range(4):
        state = memory.capture()
        wanted = move(own)
        state.restore()
        assert move(own) == wanted


def test_quiet_generators_of_one_s_own_are_not_copied_again():
    memory = RngMemory()
    memory.watch(
        [torch.Generator(), random.Random(1), np.random.default_rng(1), np.random.RandomState(1)]
    )
    first = memory.capture()
    assert all(memory.capture() is first for _ in range(8))
