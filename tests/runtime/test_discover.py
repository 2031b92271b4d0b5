"""What the running functions can reach."""

import gc
import random
import sys
import weakref

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from stayfinite.runtime import discover
from stayfinite.runtime.discover import Reach, find_optimizers

far = {"kept": [{"model": torch.nn.Linear(2, 2)}]}
near = torch.nn.Linear(3, 3)


@pytest.fixture(autouse=True)
def without_limit(monkeypatch):
    """What the test runner's own frames hold does not use up the number of objects that are looked at."""
    monkeypatch.setattr(discover, "_MAX_OBJECTS", 10**7)


class Holder:
    def __init__(self, **held):
        self.__dict__.update(held)


def walked(pairs):
    reach = Reach(None)
    reach.walk(pairs)
    return reach


def test_the_nearest_name_of_a_thing_is_the_one_that_is_kept():
    own = torch.nn.Linear(1, 1)
    found = walked([("a_list", [own]), ("model", own)])
    assert [n for n, v in found._found.values() if v is own] == ["model"]


def test_a_look_for_parameters_ends_where_it_has_found_them_all():
    own = torch.nn.Linear(1, 1)
    frame = sys._getframe()
    short = Reach(frame, moved=own.parameters())
    assert not short.is_whole
    assert any(m is own for _, m in short.modules)
    assert any(m is near for _, m in short.modules)  # a name of this module
    assert not any(m is far["kept"][0]["model"] for _, m in short.modules)
    whole = Reach(frame)
    assert whole.is_whole
    assert any(m is far["kept"][0]["model"] for _, m in whole.modules)


def test_a_look_for_parameters_that_nobody_near_holds_is_a_whole_one():
    found = Reach(sys._getframe(), moved=far["kept"][0]["model"].parameters())
    assert found.is_whole
    assert any(m is far["kept"][0]["model"] for _, m in found.modules)


def test_what_lies_beside_is_found_and_not_kept_alive():
    own = torch.nn.Linear(1, 1)
    holder = Holder(rng=random.Random(1), more=(torch.Generator(),), average=AveragedModel(own))
    reach = Reach(sys._getframe())
    auxiliaries = reach.auxiliaries
    kinds = {type(g) for g in auxiliaries.generators}
    assert {random.Random, torch.Generator} <= kinds
    assert any(m is holder.average for m in auxiliaries.averages)
    alive = weakref.ref(holder.average)
    del holder, reach
    gc.collect()
    assert alive() is None


def test_an_object_that_answers_for_its_class_is_not_asked():
    class Lazy:
        @property
        def __class__(self):
            raise AssertionError("asked")

    lazy = Lazy()
    odd = type("Odd", (), {"__module__": None})()
    reach = Reach(sys._getframe())
    assert reach.is_whole
    assert lazy is not None and odd is not None


def test_optimizers_are_found_among_names_that_are_given():
    given = {"trainer": Holder(optimizer=torch.optim.SGD([torch.zeros(1, requires_grad=True)]))}
    assert find_optimizers(None, given) == [given["trainer"].optimizer]


def test_a_class_that_cannot_be_looked_up_hides_nothing():
    class Meta(type):
        def __eq__(cls, other):
            return cls is other

        __hash__ = None

    class Odd(metaclass=Meta):
        pass

    own = torch.nn.Linear(1, 1)
    held = {"odd": Odd(), "more": [own]}
    found = walked(held.items())
    assert [v for _, v in found._found.values()] == [own]
