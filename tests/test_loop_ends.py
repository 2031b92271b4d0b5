"""Loops that end early, have a schedule, or share their batches."""

import sys
import threading
import time
import weakref

import pytest
import torch
from tests.loops import QUICK, body, data, make
from torch import nn

from stayfinite import Guard


def test_an_exception_of_the_loop_is_the_users_own_and_close_cleans_up():
    model, optimizer = make()
    before = torch.Tensor.backward
    with pytest.raises(KeyError, match="mine"), Guard(model, optimizer, settings=QUICK) as guard:
        for i, x in enumerate(guard(data())):
            body(model, optimizer, x)
            if i == 2:
                raise KeyError("mine")
    assert torch.Tensor.backward is before
    assert guard.incidents == []


def test_an_exception_after_a_bad_step_leaves_clean_state():
    """The loop's own error comes once, where it would have come."""
    model, optimizer = make()
    seen = []
    with pytest.raises(ZeroDivisionError), Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard(data(bad=[3])):
            seen.append(x)
            if len(seen) == 6:
                raise ZeroDivisionError
            body(model, optimizer, x)
    assert [i.event.step for i in guard.incidents] == [3]
    assert len(seen) == 6
    assert guard.incidents[0].location.op == "aten.log"
    assert all(torch.isfinite(t).all() for t in model.state_dict().values())
    assert not torch.is_anomaly_enabled()


def test_the_schedule_of_the_loop_stands_still_with_a_skipped_step():
    def run(batches, is_guarded):
        model, optimizer = make()
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
        guard = Guard(model, optimizer, scheduler if is_guarded else None, settings=QUICK)
        for x in guard(batches) if is_guarded else batches:
            body(model, optimizer, x)
            scheduler.step()
        guard.close()
        return scheduler.state_dict()

    kept = [x for i, x in enumerate(data()) if i != 3]
    assert run(data(bad=[3]), True) == run(kept, False)


def test_a_schedule_by_the_epoch_goes_on():
    model, optimizer = make()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with Guard(model, optimizer, scheduler, settings=QUICK) as guard:
        for _ in range(2):
            for x in guard(data(bad=[7])):
                body(model, optimizer, x)
            scheduler.step()
    assert len(guard.incidents) == 2
    assert scheduler.get_last_lr() == [0.05 * 0.25]


def test_models_that_share_the_loop_without_the_guard_are_left_alone():
    """The optimizer of another model steps on the same batch: that is not the guard's."""
    model, optimizer = make()
    other = nn.Linear(2, 1)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard(data()):
            body(model, optimizer, x)
            body(other, other_optimizer, x)
    assert guard.incidents == []
    assert all(torch.isfinite(p).all() for p in other.parameters())


# -- what a loop does meanwhile ------------------------------------------------------------------


def guarded_loop(at_end, bad=(3,), **options):
    """A loop in a function of its own, with `at_end` called at the end of each."""
    model, optimizer = make()
    with Guard(model, optimizer, settings=QUICK, **options) as guard:
        incidents, values = guard.incidents, []
        for x in guard(data(bad=bad)):
            body(model, optimizer, x)
            values.append(at_end(guard))
    return guard, incidents, values


def test_incidents_that_a_loop_holds_are_not_cut_with_its_own_lists():
    guard, incidents, values = guarded_loop(lambda guard: len(guard.incidents))
    assert [i.event.step for i in guard.incidents] == [3] and incidents == []
    assert values == [0, 0, 0, 1, 1, 1, 1, 1]


def test_what_another_thread_adds_to_a_list_stays():
    filled, is_over = [], threading.Event()

    def fill():
        while not is_over.wait(0.001):
            filled.append(1)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    seen = []
    model, optimizer = make()
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard(data(bad=[3])):
            body(model, optimizer, x)
            time.sleep(0.01)
            seen.append(len(filled))
    is_over.set()
    thread.join()
    assert seen == sorted(seen)


class Touchy(dict):
    def values(self):
        raise RuntimeError("not now")


def test_an_object_that_does_not_want_to_be_looked_at_is_left_alone():
    model, optimizer = make()
    touchy = Touchy(a=[1])
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard(data(bad=[3])):
            body(model, optimizer, x)
            assert len(touchy) == 1
    assert [i.event.step for i in guard.incidents] == [3]


def test_standard_output_is_what_it_was(capsys):
    guard, _, values = guarded_loop(lambda _: (sys.stdout.encoding, print("end")))
    assert len(guard.incidents) == 1 and all(isinstance(e, str) for e, _ in values)
    assert capsys.readouterr().out.split() == ["end"] * 8


def test_a_rate_that_was_set_for_the_next_step_stays_set():
    model, optimizer = make()
    used = []
    with Guard(model, optimizer, settings=QUICK) as guard:
        batches = iter(guard(data(bad=[3])))
        for iteration in range(8):
            optimizer.param_groups[0]["lr"] = 0.01 * (iteration + 1)
            x = next(batches)
            body(model, optimizer, x)
            used.append(optimizer.param_groups[0]["lr"])
    assert used == [0.01 * (i + 1) for i in range(8)]
    assert [i.event.step for i in guard.incidents] == [3]


def test_a_bad_number_that_the_loop_replaces_itself_keeps_nothing_alive():
    model, optimizer = make()
    kept = weakref.WeakSet()
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard(data()):
            optimizer.zero_grad()
            out = model(x)
            kept.add(out)
            side = out.mean() * float("nan")
            loss = out.pow(2).mean() + (0.0 if torch.isnan(side) else side)
            loss.backward()
            optimizer.step()
        assert len(guard.engine.log) == 8
        assert len(kept) <= 1
    assert guard.incidents == []


def test_checks_inside_function_transforms_are_the_users_own():
    model, optimizer = make()

    def value(w):
        loss = (w * 2).sum()
        return torch.where(torch.isnan(loss), loss * 0, loss)

    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard(data()):
            torch.func.vmap(torch.func.grad(value))(torch.ones(2, 3, requires_grad=True))
            body(model, optimizer, x)
    assert guard.incidents == []
