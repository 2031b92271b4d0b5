"""Whatever is written into a copy, the original does not change."""

import functools
import io
import queue
import random
import threading
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest
import torch
from torch import nn

from stayfinite.investigate.body.copies import Copier


class Plain:
    def __init__(self):
        self.items = [1]

    def add(self, item):
        self.items.append(item)
        NOTES.append(item)


class Slots:
    __slots__ = ("empty", "items")

    def __init__(self):
        self.items = [1]


class Keyed(dict):
    pass


class Listed(list):
    pass


NOTES = []
Pair = namedtuple("Pair", "a b")


def write(value):
    if isinstance(value, dict):
        value["new"] = 1
    elif isinstance(value, (set, Counter)):
        value.add(9)
    elif isinstance(value, (np.ndarray, bytearray)):
        value[0] = 7
    elif hasattr(value, "append"):
        value.append(9)
    else:
        value.items.append(9)


@pytest.mark.parametrize(
    "value",
    [
        [1], {"a": 1}, {1}, deque([1], maxlen=5), OrderedDict(a=1), defaultdict(list, a=[1]),
        Counter(a=1), np.zeros(2), bytearray(b"ab"), Plain(), Slots(), Keyed(a=1), Listed([1]),
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_a_write_lands_in_the_copy(value):
    before = repr(getattr(value, "items", value) if not isinstance(value, dict) else value)
    new = Copier().copy(value)
    assert type(new) is type(value) and new is not value
    write(new)
    assert repr(getattr(value, "items", value) if not isinstance(value, dict) else value) == before


def test_what_was_one_object_stays_one_object():
    inner = [1]
    a, b = Copier().copy([inner, {"same": inner}])
    assert a is b["same"] and a is not inner


def test_an_object_that_holds_itself_can_be_copied():
    plain = Plain()
    plain.me = plain
    new = Copier().copy(plain)
    assert new.me is new


def test_a_named_tuple_stays_one():
    new = Copier().copy(Pair([1], 2))
    assert isinstance(new, Pair) and new.b == 2


def test_a_module_has_the_same_parameters_and_its_own_attributes():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.seen = []
    new = Copier().copy(model)
    assert [id(p) for p in new.parameters()] == [id(p) for p in model.parameters()]
    new.seen.append(1)
    new[0].extra = 1
    new.register_buffer("more", torch.ones(1))
    new.eval()
    assert model.seen == [] and model.training and not hasattr(model[0], "extra")
    assert "more" not in dict(model.named_buffers())


def test_a_method_belongs_to_the_copy_and_sees_copies_of_the_globals():
    plain = Plain()
    add = Copier().copy(plain.add)
    add(2)
    assert plain.items == [1] and NOTES == []


def test_methods_that_were_bound_before_belong_to_the_copy():
    items = [1]
    mine, append, part = Copier().copy((items, items.append, functools.partial(items.insert, 0)))
    append(2)
    part(0)
    assert items == [1] and mine == [0, 1, 2]


def test_a_function_has_its_own_closure():
    count = 0

    def up():
        nonlocal count
        count += 1
        return count

    assert Copier().copy(up)() == 1 and Copier().copy(up)() == 1 and count == 0


def test_generators_of_random_numbers_are_copied_but_not_the_global_ones():
    own, source = random.Random(3), torch.Generator().manual_seed(3)
    state = own.getstate()
    copier = Copier()
    copier.copy(own).random()
    torch.rand(1, generator=copier.copy(source))
    assert own.getstate() == state and source.initial_seed() == 3
    assert torch.equal(source.get_state(), torch.Generator().manual_seed(3).get_state())
    assert copier.copy(random.random) == random.random


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(1), io.StringIO(), queue.Queue(), threading.Lock(), iter([1]), (n for n in [1]),
        torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1), Plain, np, threading,
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_what_reaches_outside_is_shared(value):
    assert Copier().copy(value) is value


def test_a_large_array_can_only_be_read():
    large = np.zeros(3 * 2**20)
    new = Copier().copy(large)
    assert np.shares_memory(new, large)
    with pytest.raises(ValueError, match="read-only"):
        new[0] = 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_a_module_that_is_compiled_is_copied_without_its_compilation():
    model = nn.Linear(2, 2)
    new = Copier().copy(torch.compile(model))
    assert type(new) is nn.Linear and new.weight is model.weight
