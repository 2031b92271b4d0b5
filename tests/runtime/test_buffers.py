"""Buffers that are put back after a bad step."""

import weakref

import pytest
import torch

from stayfinite.runtime.buffers import Buffers


def watched(module):
    buffers = Buffers({"": weakref.ref(module)})
    buffers.copy()
    return buffers


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("first", torch.zeros(2))
        self.register_buffer("second", torch.zeros(2))


def corrupt(module):
    for buffer in module.buffers():
        buffer.fill_(float("nan"))


def test_a_buffer_that_cannot_be_written_to_any_more_is_replaced():
    module = Two()
    buffers = watched(module)
    corrupt(module)
    module.first.set_(torch.full((1,), float("nan")).expand(2))  # one number, seen twice
    buffers.restore()
    assert module.first.tolist() == module.second.tolist() == [0, 0]
    corrupt(module)
    buffers.restore()
    assert module.first.tolist() == [0, 0]


def test_one_that_fails_keeps_no_other_from_it_and_is_named(monkeypatch):
    module = Two()
    buffers = watched(module)
    corrupt(module)
    put = Buffers._put

    def fail(self, module, key, *known):
        if key == "first":
            raise MemoryError
        put(self, module, key, *known)

    monkeypatch.setattr(Buffers, "_put", fail)
    with pytest.raises(RuntimeError, match=r"keep what the bad step wrote: first$"):
        buffers.restore()
    assert module.second.tolist() == [0, 0]
    monkeypatch.undo()
    buffers.restore()
    assert module.first.tolist() == [0, 0]
