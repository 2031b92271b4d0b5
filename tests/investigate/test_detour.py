"""A replay's collectives go over groups of our own, which can be closed at any moment."""

import contextvars
import gc

import pytest
import torch
import torch.distributed as dist

from stayfinite.investigate.replays.detour import Detour
from stayfinite.runtime.ranks.side_groups import GroupCopies


@pytest.fixture
def copies():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    groups = GroupCopies(5.0)
    yield groups
    groups.close()
    dist.destroy_process_group()


class _SumsInItsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        _SumsInItsBackward.work = dist.all_reduce(grad, async_op=True)
        return grad


def test_a_collective_in_a_backward_holds_no_python_object(copies):
    """Gloo's thread would need the interpreter to drop it, while closing the group waits for that thread."""
    gc.collect()
    before = sum(type(o) is contextvars.Context for o in gc.get_objects())
    with Detour(copies):
        _SumsInItsBackward.apply(torch.ones(3, requires_grad=True)).sum().backward()
    _SumsInItsBackward.work.wait()
    gc.collect()
    after = sum(type(o) is contextvars.Context for o in gc.get_objects())
    del _SumsInItsBackward.work
    assert after == before
