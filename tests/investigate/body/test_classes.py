"""Classes that torch calls by itself: what they write in a replay is not felt."""

from typing import ClassVar

import torch

from stayfinite.investigate.body.copies import Copier

seen = []


class Counting(torch.Tensor):
    called: ClassVar = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.called.append(func)
        Counting.called.append(func)
        seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Plain(torch.Tensor):
    pass


def double(x):
    return (x.as_subclass(Counting) * 2).sum()


def test_a_class_and_what_its_methods_see_are_copied_once():
    copier = Copier()
    copied = copier.copy(double)
    result = copied(torch.ones(3))
    assert (Counting.called, seen) == ([], [])
    kind = copier.copy(Counting)
    assert issubclass(kind, Counting) and isinstance(result, kind)
    assert len(kind.called) > 1 and kind.__qualname__ == "Counting"


def test_a_tensor_of_such_a_class_is_one_of_the_copied_class_with_the_same_numbers():
    value = torch.ones(3).as_subclass(Counting)
    copier = Copier()
    new = copier.copy([value])[0]
    (new + 1).sum()
    assert (Counting.called, seen) == ([], [])
    assert type(new) is copier.copy(Counting)
    assert new.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    Counting.called.clear()
    seen.clear()


def test_a_class_that_writes_nowhere_and_a_parameter_stay_what_they_are():
    copier = Copier()
    plain, weight = torch.ones(2).as_subclass(Plain), torch.nn.Parameter(torch.ones(2))
    assert copier.copy(plain) is plain and copier.copy(weight) is weight
    assert copier.copy(torch.Tensor) is torch.Tensor
