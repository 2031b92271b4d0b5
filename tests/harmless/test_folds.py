"""Fold after fold in one process: nothing of a training that is over is kept."""

import contextlib
import gc
import io
import weakref

import pytest
import torch
from torch.optim import Optimizer

from stayfinite import Guard, Settings
from stayfinite.investigate.entry import investigate
from stayfinite.recover.policy import Policy
from stayfinite.runtime.script.run_script import ScriptRun

NUM_OF_A_FOLD = (
    20  # its tensors, modules and optimizer, without gradients; ten folds lie between counts
)
QUICK = Settings(diagnose=False, replay="off")


def parts():
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def batches(is_bad):
    data = torch.randn(24, 3)
    if is_bad:
        data[9] = float("nan")
    return torch.utils.data.DataLoader(data, batch_size=4)


def loop(model, optimizer, scheduler, loader):
    for x in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()


def fold_under_guard(i):
    made = parts()
    with Guard(*made, settings=QUICK) as guard:
        loop(*made, guard(batches(i % 2)))


def fold_of_steps(i):
    made = parts()
    with Guard(*made, settings=QUICK) as guard:
        for x in batches(i % 2):
            guard.step(lambda m, x: m(x).pow(2).mean(), x)


def fold_of_script(i):
    loop(*parts(), batches(i % 2))


def alive():
    gc.collect()
    kinds = (torch.Tensor, torch.nn.Module, Optimizer)
    return sum(issubclass(type(each), kinds) for each in gc.get_objects())


def counts(fold, num_folds):
    """Tensors, modules and optimizers alive after each tenth fold."""
    found = []
    for i in range(num_folds):
        fold(i)
        if i % 10 == 9:
            found.append(alive())
    return found


@pytest.mark.parametrize("fold", [fold_under_guard, fold_of_steps])
def test_fifty_guards_in_turn_leave_nothing_behind(fold):
    with contextlib.redirect_stderr(io.StringIO()):
        found = counts(fold, 50)
    assert max(found) - min(found) < 3 * NUM_OF_A_FOLD


def test_fifty_folds_of_one_script_leave_nothing_behind(tmp_path):
    run = ScriptRun(QUICK, Policy(), tmp_path / "run", investigate)
    with contextlib.redirect_stderr(io.StringIO()):
        found = run.run_call(lambda: counts(fold_of_script, 50))
    # What the last fold trained with may still be there, or not.
    assert max(found) - min(found) < 3 * NUM_OF_A_FOLD
    assert len(run.engine.incidents) == 25


def fold_with_a_generator(i):
    generator = torch.Generator().manual_seed(i)
    made = parts()
    data = torch.utils.data.TensorDataset(torch.randn(8, 3))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=generator)
    loop(*made, (x for (x,) in loader))
    return weakref.ref(generator)


def test_the_generator_of_a_fold_that_is_over_is_let_go(tmp_path):
    run = ScriptRun(QUICK, Policy(), tmp_path / "run", investigate)
    found = run.run_call(lambda: [fold_with_a_generator(i) for i in range(6)])
    gc.collect()
    assert sum(ref() is not None for ref in found) <= 2  # the last ones


def test_a_loader_that_the_script_lets_go_of_is_gone_at_once(tmp_path):
    def draw_one():
        loader = batches(False)
        held = iter(loader)
        next(held)
        return weakref.ref(loader)

    run = ScriptRun(QUICK, Policy(), tmp_path / "run", investigate)
    assert run.run_call(lambda: draw_one()()) is None


def test_an_investigation_keeps_nothing_that_only_the_garbage_collector_would_find(tmp_path):
    gone = []

    def fold():
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters())
        weakref.finalize(model, gone.append, 1)
        for x in batches(True):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()

    def folds():
        fold()
        gc.collect()
        gone.clear()
        gc.disable()
        try:
            for _ in range(8):
                fold()
        finally:
            gc.enable()
        return len(gone)

    run = ScriptRun(Settings(), Policy(), tmp_path / "run", investigate)
    with contextlib.redirect_stderr(io.StringIO()):
        assert run.run_call(folds) >= 6  # the last ones may still be looked after
    assert len(run.engine.incidents) == 9
