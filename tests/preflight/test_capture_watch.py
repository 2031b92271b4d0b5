"""How a loop draws its batches, learnt from the steps that it makes."""

import torch

from stayfinite.preflight.capture.watch import LoopWatch
from stayfinite.runtime.state import TrainState

LOSS = torch.tensor(1.0)


def watch_of():
    return LoopWatch(TrainState())


def one_step(watch, *draws, num_backward=1):
    for loader, batch in draws:
        watch.asks(loader)
        watch.drew(loader, batch)
    for _ in range(num_backward):
        watch.saw_backward(LOSS)
    watch.iteration.num_steps += 1


def test_a_step_is_over_when_its_loader_is_asked_again():
    watch = watch_of()
    one_step(watch, ("a", 1))
    assert watch.steps == []
    watch.asks("validation")
    assert watch.steps == []
    watch.asks("a")
    assert [s.loss for s in watch.steps] == [1.0]
    assert (watch.loaders, watch.batches, watch.per_step, watch.lag) == (["a"], [1], 1, 0)


def test_two_loaders_of_one_step_give_one_batch_together():
    watch = watch_of()
    one_step(watch, ("a", 1), ("b", 2))
    watch.asks("a")
    assert (watch.loaders, watch.batches, watch.per_step) == (["a", "b"], [(1, 2)], 1)


def test_accumulation_takes_several_batches_a_step():
    watch = watch_of()
    for batch in (1, 2):
        watch.asks("a")
        watch.drew("a", batch)
        watch.saw_backward(LOSS)
    watch.iteration.num_steps += 1
    watch.asks("a")
    assert (watch.per_step, watch.batches, watch.steps[0].num_batches) == (2, [1], 2)


def test_a_loop_that_fetches_ahead_lags_by_one():
    watch = watch_of()
    one_step(watch, ("a", 1), ("a", 2))
    watch.asks("a")
    assert (watch.lag, watch.per_step) == (1, 1)


def test_another_loader_belongs_to_the_training_once_a_backward_follows():
    watch = watch_of()
    one_step(watch, ("a", 1))
    watch.drew("b", 2)
    assert watch.loaders == []
    watch.saw_backward(LOSS)
    watch.iteration.num_steps += 1
    watch.asks("b")
    assert (watch.loaders, watch.batches) == (["b"], [1, 2])


def test_batches_that_are_drawn_all_at_once_belong_to_no_step():
    watch = watch_of()
    for batch in (1, 2, 3):
        watch.drew("a", batch)
    watch.loader_ended("a", 3)
    assert watch.is_loaderless
    watch.drew("b", 1)
    watch.loader_ended("b", 1)  # an epoch of one batch, fetched ahead
    assert not watch.is_loaderless


def test_steps_without_any_batch_after_some_with_one_are_made_of_kept_batches():
    watch = watch_of()
    one_step(watch, ("a", 1))
    watch.asks("a")  # and gets none
    one_step(watch, num_backward=0)  # after an epoch a loop may step once more
    assert not watch.has_kept_batches
    one_step(watch, num_backward=2)
    assert watch.has_kept_batches
