"""Which snapshot time travel goes back to: an older one while a training diverges."""

import pytest
import torch

from stayfinite.runtime.window import BatchRef, Window
from stayfinite.runtime.window_log import WindowLog


def log_of(losses, most=64):
    log = WindowLog(most)
    add(log, losses)
    return log


def add(log, losses):
    for loss in losses:
        window = Window([], None, [])
        window.loss = loss
        log.add(window)


@pytest.mark.parametrize(
    "losses",
    [
        [2.0, 1.9, 1.7, 1.8, 1.6, 1.5, 1.6, 1.4],
        [1.3, 0.7, 1.2, 0.8, 1.1, 0.7, 1.3, 0.9],  # two optimizers in turn
        [-1.0, -1.2, -1.1, -1.5, -1.4, -1.8, -1.9, -2.0],
        [None] * 8,  # nobody has read them
    ],
)
def test_an_ordinary_training_gets_a_newer_snapshot_after_eight_steps(losses):
    assert log_of(losses).may_begin_anew(True)
    assert not log_of(losses[:7]).may_begin_anew(True)
    assert log_of(losses[:7]).may_begin_anew(False)  # somebody has asked for it


@pytest.mark.parametrize(
    "losses",
    [
        [1.3, 720.0, 1800.0, 6e7, 2e7, 1e9, 1e17, 7e29],
        [1.0, 1.1, 1.2, 2.0, 4.0, 9.0, 15.0, 40.0],
    ],
)
def test_a_diverging_one_keeps_the_older(losses):
    assert not log_of(losses).may_begin_anew(True)


def test_losses_before_the_snapshot_count_as_well():
    log = log_of([1.0, 1.1, 0.9, 1.0, 1.2, 1.5, 2.0, 4.0])
    assert log.may_begin_anew(True)
    log.begin_anew()
    rising = [4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 12.0, 20.0]
    add(log, rising)
    assert not log.may_begin_anew(True)
    assert log_of(rising).may_begin_anew(True)  # without them it would not be seen


def test_memory_has_the_last_word():
    assert log_of([1.0, 1e9, 1e18], most=3).may_begin_anew(True)


def test_a_rollback_forgets_them():
    log = log_of([1.0] * 8)
    log.begin_anew()
    log.release_all()
    add(log, [1e9] * 8)
    assert log.may_begin_anew(True)


@pytest.mark.parametrize(("megabytes", "most"), [(1, 64), (8, 8), (40, 1), (100, 0)])
def test_it_holds_64_megabytes_of_batches_and_one_more(megabytes, most):
    """So a batch of a megabyte does not ask for a copy of the whole state in every step."""
    batch = torch.empty(megabytes << 18)
    log = WindowLog(1024)
    for number in range(most + 1):
        assert not log.is_full(), number
        log.add(Window([BatchRef(number, 0, [(lambda: None, batch)])], None, []))
    assert log.is_full()
    assert (log.room(), log.room(is_anew=True)) == (1, most + 1)
