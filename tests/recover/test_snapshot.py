"""Everything comes back exactly, whatever happened in between."""

import math

import torch
from torch import nn

from stayfinite.recover.snapshot import Snapshot
from stayfinite.runtime.undo import entries


def slot(home, key):
    return entries(home, skip=tuple(k for k in home if k != key))


def test_tensors_of_every_kind_come_back_bit_for_bit():
    tensors = [
        torch.randn(3), nn.Parameter(torch.randn(2, 2)), torch.randn(3).half(),
        torch.randn(2, dtype=torch.complex64), torch.tensor(5), torch.tensor([True, False]),
        torch.randn(4, 4)[:, ::2], torch.zeros(0), torch.ones(3).to(torch.float8_e5m2),
        torch.tensor([float("nan"), float("inf")]),
    ]  # fmt: skip
    before = [t.detach().clone() for t in tensors]
    kept = Snapshot()
    kept.take(3, tensors, [], [])
    with torch.no_grad():
        for t in tensors:
            t.copy_(torch.zeros_like(t))
    kept.restore()
    for t, b in zip(tensors, before):
        found, wanted = (v.detach().reshape(-1).contiguous().view(torch.uint8) for v in (t, b))
        assert torch.equal(found, wanted)
    assert (kept.is_taken, kept.tag) == (True, 3)


def test_the_tensors_themselves_stay_the_same_objects():
    x = torch.ones(2)
    kept = Snapshot()
    kept.take(0, [x], [], [])
    address = x.data_ptr()
    x.add_(1)
    kept.restore()
    assert x.data_ptr() == address
    assert torch.equal(x, torch.ones(2))


def test_restoring_twice_gives_the_same():
    x, home = torch.ones(2), {"a": [1]}
    kept = Snapshot()
    kept.take(0, [x], [slot(home, "a")], [])
    for _ in range(2):
        x.add_(1)
        home["a"].append(2)
        kept.restore()
        assert torch.equal(x, torch.ones(2))
        assert home == {"a": [1]}


def test_optimizer_state_born_later_is_removed():
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    kept = Snapshot()
    kept.take(0, [weight], [], [optimizer.state])
    weight.grad = torch.ones(2)
    optimizer.step()
    assert optimizer.state
    kept.restore()
    assert not optimizer.state
    assert torch.equal(weight.detach(), torch.ones(2))


def test_memory_is_reused():
    x = torch.ones(100)
    kept = Snapshot()
    kept.take(0, [x], [], [])
    address = kept._kept[0].data_ptr()
    x.add_(1)
    kept.take(1, [x], [], [])
    assert kept._kept[0].data_ptr() == address
    x.add_(1)
    kept.restore()
    assert torch.equal(x, torch.full((100,), 2.0))


def test_dropping_forgets():
    x = torch.ones(2)
    kept = Snapshot()
    kept.take(0, [x], [], [])
    kept.drop()
    assert not kept.is_taken
    x.add_(1)
    kept.restore()
    assert torch.equal(x, torch.full((2,), 2.0))


def test_sparse_tensors_come_back():
    x = torch.eye(3).to_sparse()
    kept = Snapshot()
    kept.take(0, [x], [], [])
    x.mul_(5)
    kept.restore()
    assert torch.equal(x.to_dense(), torch.eye(3))


def test_entries_and_tensors_that_were_replaced_go_back_by_identity():
    live = torch.ones(2)
    state = {"p": {"v": live, "step": 1}}
    snapshot = Snapshot()
    snapshot.take(0, [live], [], [state])
    entry = state["p"]
    state["p"] = {"v": torch.full((2,), 9.0), "new": torch.ones(1)}
    state["q"] = {}
    snapshot.restore()
    assert state == {"p": entry} and entry == {"v": live, "step": 1}
    assert torch.equal(live, torch.ones(2))


def test_a_tensor_that_was_resized_gets_its_shape_back():
    observed, other = torch.zeros(0), torch.ones(2)
    snapshot = Snapshot()
    snapshot.take(0, [observed, other], [], [])
    observed.resize_(3).fill_(math.nan)
    other.fill_(5)
    snapshot.restore()
    assert observed.shape == (0,)
    assert other.tolist() == [1, 1]
    observed.resize_(3).fill_(2)
    snapshot.take(1, [observed, other], [], [])
    observed.fill_(math.nan)
    snapshot.restore()
    assert observed.tolist() == [2, 2, 2]
