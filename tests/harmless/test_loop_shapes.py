"""Loops of many shapes, under `guard(loader)` and `stayfinite run`: bitwise the same as plain without bad batches."""

import contextlib
import copy
import functools
import io

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from stayfinite import Guard, Settings
from stayfinite.investigate.entry import investigate
from stayfinite.recover.policy import Policy
from stayfinite.runtime.script.run_script import ScriptRun

BAD = ((), (0,), (5,), (11,), (5, 6))
QUICK = Settings(diagnose=False, replay="off")
SOURCES = {"list": list, "loader": lambda rows: DataLoader(rows, batch_size=None)}


class Training:
    """Batch norm and dropout, so that buffers and random numbers count, too."""

    def __init__(self):
        torch.manual_seed(3)
        self.model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)

    def loss(self, batch):
        return (self.model(batch[0]) - batch[1]).pow(2).mean()

    def step(self, batch):
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        self.optimizer.step()

    def left(self, *others):
        kept = [self.model.state_dict(), self.optimizer.state_dict(), torch.get_rng_state()]
        return [_bytes(k) for k in (*kept, *others)]


def _bytes(value):
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, dict):
        return {k: _bytes(v) for k, v in value.items()}
    return [_bytes(v) for v in value] if isinstance(value, (list, tuple)) else value


def is_fine(batch):
    return bool(batch[0].isfinite().all())


def each_epoch(guard, source):
    training = Training()
    for _ in range(2):
        for batch in guard(training)(source()):
            training.step(batch)
    return training.left()


def an_epoch_that_is_left_early(guard, source):
    training = Training()
    protected = guard(training)
    for epoch in range(3):
        num_fine = 0
        for batch in protected(source()):
            training.step(batch)
            num_fine += is_fine(batch)
            if epoch == 0 and num_fine == 7:
                break
    return training.left()


def another_loader_inside(guard, source):
    training = Training()
    for batch in guard(training)(source()):
        for _ in DataLoader(torch.arange(3.0), batch_size=1):
            pass
        training.step(batch)
    return training.left()


def validation_between(guard, source):
    training = Training()
    protected, seen = guard(training), []
    for _ in range(2):
        for batch in protected(source()):
            training.step(batch)
        training.model.eval()
        with torch.no_grad():
            seen += [training.loss(b).item() for b in source() if is_fine(b)]
        training.model.train()
    return training.left(seen)


def a_schedule_by_the_epoch(guard, source):
    training = Training()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, 3)
    protected = guard(training, schedule)
    for _ in range(3):
        for batch in protected(source()):
            training.step(batch)
        schedule.step()
    return training.left(schedule.state_dict())


def a_schedule_by_the_step(guard, source):
    training = Training()
    schedule = torch.optim.lr_scheduler.OneCycleLR(training.optimizer, 0.02, total_steps=40)
    for batch in guard(training, schedule)(source()):
        training.step(batch)
        schedule.step()
    return training.left(schedule.last_epoch, schedule.get_last_lr())


def a_generator(guard, source):
    training = Training()
    for batch in guard(training)(b for b in source()):
        training.step(batch)
    return training.left()


def a_closure(guard, source):
    training = Training()
    for batch in guard(training)(source()):

        def closure(batch=batch):
            training.optimizer.zero_grad()
            loss = training.loss(batch)
            loss.backward()
            return loss

        training.optimizer.step(closure)
    return training.left()


def an_error_that_is_caught(guard, source):
    training = Training()
    for batch in guard(training)(source()):
        with contextlib.suppress(KeyError):
            training.optimizer.zero_grad()
            training.loss(batch).backward()
            if batch[1][0, 0] > 0.8 and is_fine(batch):
                raise KeyError("the loop's own")
            training.optimizer.step()
    return training.left()


def weights_loaded_in_the_loop(guard, source):
    training, kept, num_fine = Training(), None, 0
    for batch in guard(training)(source()):
        num_fine += is_fine(batch)
        if num_fine == 2:
            kept = copy.deepcopy((training.model.state_dict(), training.optimizer.state_dict()))
        if num_fine == 8 and kept is not None:
            training.model.load_state_dict(kept[0])
            training.optimizer.load_state_dict(kept[1])
            kept = None
        training.step(batch)
    return training.left()


def two_trainings(guard, source):
    one, other = Training(), Training()
    for a, b in zip(guard(one)(source()), guard(other)(source())):
        one.step(a)
        other.step(b)
    return one.left(other.model.state_dict(), other.optimizer.state_dict())


def a_new_model_for_each_fold(guard, source):
    found = []
    for _ in range(3):
        training = Training()
        for batch in guard(training)(source()):
            training.step(batch)
        found.append(training.model.state_dict())
    return training.left(found)


def a_model_that_goes_in_the_middle_of_a_step(guard, source):
    found, before = [], None
    for _ in range(3):
        training = Training()
        for batch in guard(training)(source()):
            training.optimizer.zero_grad()
            loss = training.loss(batch)
            before = before if is_fine(batch) else None
            loss.backward()
            training.optimizer.step()
        before = training
        found.append(training.model.state_dict())
    return training.left(found)


LOOPS = (
    two_trainings, a_new_model_for_each_fold, a_model_that_goes_in_the_middle_of_a_step,
    each_epoch, an_epoch_that_is_left_early, another_loader_inside, validation_between,
    a_schedule_by_the_epoch, a_schedule_by_the_step, a_generator, a_closure, an_error_that_is_caught,
    weights_loaded_in_the_loop,
)  # fmt: skip


def rows(bad, is_left_out):
    made = torch.Generator().manual_seed(5)
    found = [
        (torch.randn(8, 6, generator=made), torch.randn(8, 1, generator=made)) for _ in range(12)
    ]
    for i in bad:
        found[i][0][0, 0] = float("nan")
    return [b for i, b in enumerate(found) if not (is_left_out and i in bad)]


@functools.cache
def plain(loop, source, bad):
    return loop(
        lambda training, schedule=None: lambda source: source,
        lambda: SOURCES[source](rows(bad, is_left_out=True)),
    )


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
def test_a_guarded_loop_ends_as_if_there_had_been_no_bad_batch(loop, source):
    for bad in BAD:
        guards = []

        def guard(training, schedule=None, guards=guards):
            made = Guard(training.model, training.optimizer, schedule, settings=QUICK)
            guards.append(made)
            return made

        with contextlib.redirect_stderr(io.StringIO()):
            seen = loop(guard, lambda bad=bad: SOURCES[source](rows(bad, is_left_out=False)))
            for each in guards:
                each.close()
        assert seen == plain(loop, source, bad), bad
        assert any(g.incidents for g in guards) == bool(bad)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
def test_a_scripts_loop_ends_as_if_there_had_been_no_bad_batch(loop, tmp_path):
    for bad in BAD:
        with contextlib.redirect_stderr(io.StringIO()):
            run = ScriptRun(QUICK, Policy(), tmp_path / str(bad), investigate)
            seen = run.run_call(
                lambda bad=bad: loop(
                    lambda training, schedule=None: lambda source: source,
                    lambda: SOURCES["loader"](rows(bad, is_left_out=False)),
                )
            )
        assert seen == plain(loop, "loader", bad), bad
        # Each is reported by itself; nothing is found later that a skipped step has left behind.
        assert {i.event.symptom for i in run.engine.incidents} == ({"loss"} if bad else set())
