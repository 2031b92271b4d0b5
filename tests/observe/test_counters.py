"""Numbers that a loop counts with are put back, and nothing else is."""

import sys
from collections import deque

import pytest
import torch
from torch import nn

from stayfinite.observe.counters import Counters


class Progress:
    def __init__(self):
        self.total = 0
        self.best = 0.5
        self.name = "epoch"


class Trainer:
    def __init__(self):
        self.progress = Progress()
        self.model = nn.Linear(1, 1)
        self.model.calls = 0


def twice(times, inner, kept):
    """A stream that hands out its second batch three times, and puts the counters back."""
    counters = None
    for ordinal, item in enumerate(inner):
        if counters is not None:
            counters.go_on(ordinal)
            counters = None
        yield item
        if ordinal == 1:
            counters = Counters(sys._getframe(), 2)
            if kept is not None:
                kept.append(counters)
            for _ in range(times):
                counters.again(1)
                yield item


def bar(iterable):
    yield from iterable


def counted(make, trainer, start=0):
    seen, total, share, text, flag = 0, 0.0, 0.0, "", False
    for i, item in make(twice(3, "abcd", []), start):
        seen += 1
        total += 0.5
        text += item
        trainer.progress.total += 1
        trainer.model.calls += 1
        flag = not flag
        yield_now = (i, item, seen, total, trainer.progress.total)
        share = seen / 8
        print(*yield_now)
    return seen, total, share, text, trainer.progress.total, trainer.model.calls


MAKERS = {
    "plain": lambda s, start: enumerate(s, start),
    "bar inside": lambda s, start: enumerate(bar(s), start),
    "generator inside": lambda s, start: enumerate((x for x in s), start),
    "bar outside": lambda s, start: bar(enumerate(s, start)),
}


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("how", MAKERS)
def test_a_function_counts_as_if_nothing_came_twice(how, start, capsys):
    trainer = Trainer()
    seen, total, share, text, progress, calls = counted(MAKERS[how], trainer, start)
    assert (seen, total, share, progress) == (4, 2.0, 0.5, 4)
    assert text == "abbbbcd"  # only numbers go back
    assert calls == 4  # counters that hang on a model count
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(r[0]) - start for r in rows] == [0, 1, 1, 1, 1, 2, 3]
    assert [int(r[2]) for r in rows] == [1, 2, 3, 3, 3, 3, 4]


def test_zipped_streams_are_counted_too(capsys):
    for i, _ in enumerate(zip(twice(2, "abc", []), "uvwxyz")):
        print(i)
    assert capsys.readouterr().out.split() == ["0", "1", "1", "1", "2"]


def test_tensors_and_other_enumerations_stay(capsys):
    weight = torch.zeros(1)
    other = enumerate("pqrstuvw")
    for _ in enumerate(twice(2, "abc", [])):
        weight += 1
        print(next(other)[0])
    assert weight.item() == 5
    assert capsys.readouterr().out.split() == ["0", "1", "2", "3", "4"]


def test_a_closure_s_variable_goes_back():
    count = 0

    def add():
        nonlocal count
        count += 1

    for _ in twice(3, "abc", []):
        add()
    assert count == 3


def test_a_number_that_has_become_something_else_stays_so():
    best, kept = 1, deque()  # a list would be cut to its length
    for item in twice(1, "ab", kept):
        best = {"item": item}
    kept[0].go_on(2)
    assert best == {"item": "b"}


def test_what_other_threads_count_with_stays():
    import queue

    class Loop:
        def __init__(self):
            self.jobs, self.count = queue.Queue(), 0

    loop = Loop()
    for item in twice(3, "abc", []):
        loop.jobs.put(item)
        loop.count += 1
    assert (loop.jobs.unfinished_tasks, loop.count) == (6, 3)


def test_an_object_that_will_not_be_looked_at_is_left_alone():
    class Shy:
        def __getattribute__(self, name):
            raise RuntimeError(f"no {name} yet")

    shy, count = Shy(), 0
    for _ in twice(2, "ab", []):
        count += 1
    assert count == 3 and type(shy) is Shy


def test_looking_keeps_nothing_alive():
    import weakref

    class Big:
        pass

    def loop():
        big, count = Big(), 0
        gone = weakref.ref(big)
        for item in twice(2, "abc", None):
            count += 1  # noqa: SIM113 - what is tested
            if item == "c":
                del big
                return gone() is None, count

    assert loop() == (True, 3)


def test_a_dict_that_locals_gave_the_function_stays_full():
    def train(rate=0.1):
        config = locals()
        for _ in twice(2, "abc", []):
            pass
        return config

    assert train()["rate"] == 0.1


def test_dead_proxies_and_lazy_objects_in_reach_do_no_harm():
    import weakref

    from stayfinite.observe.counters import own_generators

    class Thing:
        pass

    thing = Thing()
    dead, count = weakref.proxy(thing), 0
    del thing
    own = torch.Generator()
    assert own_generators() == [own]
    for _ in twice(2, "abc", []):
        count += 1
    assert count == 3 and dead is not None
