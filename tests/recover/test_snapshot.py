"""Everything comes back exactly, whatever happened in between."""

import copy
import math
import os

import pytest
import torch
from torch import nn

from stayfinite.recover.scratch import ScratchSnapshot
from stayfinite.recover.snapshot import Snapshot
from stayfinite.runtime import saved_state
from stayfinite.runtime.saved_state import StateCopy, choose_snapshot
from stayfinite.runtime.state import TrainState
from stayfinite.runtime.undo import entries


def slot(home, key):
    return entries(home, skip=tuple(k for k in home if k != key))


@pytest.fixture(params=["memory", "file"])
def snapshot(request, tmp_path):
    return Snapshot() if request.param == "memory" else ScratchSnapshot(tmp_path)


def test_tensors_of_every_kind_come_back_bit_for_bit(snapshot):
    kept = snapshot
    tensors = [
        torch.randn(3), nn.Parameter(torch.randn(2, 2)), torch.randn(3).half(),
        torch.randn(2, dtype=torch.complex64), torch.tensor(5), torch.tensor([True, False]),
        torch.randn(4, 4)[:, ::2], torch.zeros(0), torch.ones(3).to(torch.float8_e5m2),
        torch.tensor([float("nan"), float("inf")]), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3, dtype=torch.complex64).conj(),
    ]  # fmt: skip
    before = [t.detach().clone() for t in tensors]
    kept.take(3, tensors, [], [])
    with torch.no_grad():
        for t in tensors:
            t.copy_(torch.zeros_like(t))
    kept.restore()
    for t, b in zip(tensors, before):
        found, wanted = (
            v.detach().resolve_conj().reshape(-1).contiguous().view(torch.uint8) for v in (t, b)
        )
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


def test_a_value_larger_than_the_buffer_of_the_file_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr("stayfinite.recover.scratch.PART_LENGTH", 64)
    x = torch.arange(1000.0)
    kept = ScratchSnapshot(tmp_path)
    kept.take(0, [x], [], [])
    version = x._version
    x.zero_()
    kept.restore()
    assert torch.equal(x, torch.arange(1000.0))
    assert x._version > version + 1, "torch notices that it was written"


def test_the_change_since_the_copy_is_measured(snapshot, monkeypatch):
    for module in ("scratch", "snapshot"):
        monkeypatch.setattr(f"stayfinite.recover.{module}.PART_LENGTH", 2)
    x, y = torch.zeros(5), torch.zeros(2, 2).t().half()
    snapshot.take(0, [x, y, torch.zeros(0)], [], [])
    x += torch.tensor([3.0, 0.0, 0.0, 0.0, 4.0])
    y[0, 1] = -2
    assert [float(snapshot.change_of(i)) for i in range(3)] == [5.0, 2.0, 0.0]
    assert snapshot.positions()[id(y)] == 1


def test_the_file_has_no_name_and_is_used_again(tmp_path):
    kept = ScratchSnapshot(tmp_path)
    x, moment = torch.ones(1000), torch.full((1000,), 2.0)
    kept.take(0, [x], [], [])
    kept.take(1, [x, moment], [], [])
    assert (os.listdir(tmp_path), kept.size) == ([], 8000)
    x.zero_(), moment.zero_()
    kept.restore()
    assert (x.sum(), moment.sum()) == (1000, 2000)
    kept.drop()
    assert (kept.size, kept.is_taken) == (0, False)


def test_with_a_full_disk_the_values_stay_in_memory(tmp_path, monkeypatch):
    kept, x = ScratchSnapshot(tmp_path), torch.ones(3)
    kept.take(0, [x], [], [])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept, "_write_whole", full)
    x.add_(1)
    kept.take(1, [x], [], [])
    x.zero_()
    kept.restore()
    assert x.tolist() == [2.0] * 3
    assert kept.change_of(0) == 0


def test_a_forked_process_leaves_the_file_to_its_parent(tmp_path, monkeypatch):
    kept, x = ScratchSnapshot(tmp_path), torch.ones(3)
    kept.take(0, [x], [], [])
    with monkeypatch.context() as in_the_child:
        in_the_child.setattr("os.getpid", lambda: -1)
        assert not kept.is_taken
        child = copy.copy(kept)
        child._close = lambda: None
        x.fill_(5)
        child.take(1, [x], [], [])
        x.zero_()
        child.restore()
        assert (child.is_taken, x.tolist()) == (True, [5.0] * 3)
    kept.restore()
    assert x.tolist() == [1.0] * 3


def test_a_copy_that_was_interrupted_is_not_restored(tmp_path, monkeypatch):
    kept, x = ScratchSnapshot(tmp_path), torch.ones(3)
    kept.take(0, [x], [], [])

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(kept, "_write_whole", interrupt)
    with pytest.raises(KeyboardInterrupt):
        kept.take(1, [x], [], [])
    assert not kept.is_taken


def test_memory_for_the_weights_stays_when_moments_come():
    kept, x = Snapshot(), torch.ones(3)
    kept.take(0, [x], [], [])
    address = kept._kept[0].data_ptr()
    kept.take(1, [x, torch.zeros(2)], [], [])
    assert kept._kept[0].data_ptr() == address


@pytest.mark.parametrize(("megabytes", "is_in_file"), [(10_000, False), (0.001, True)])
def test_a_snapshot_that_is_large_for_its_process_goes_to_a_file(
    megabytes, is_in_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(saved_state, "_process_memory", lambda: megabytes * 1e6)
    monkeypatch.setattr(saved_state, "_temporary", lambda: tmp_path)
    model = nn.Linear(10, 10)
    state = TrainState()
    state.add_root(model)
    assert choose_snapshot(state, 0.25, None)
    chosen = state.snapshot
    assert isinstance(chosen, ScratchSnapshot) == is_in_file
    assert choose_snapshot(state, 0.25, None) and state.snapshot is chosen
    state.take_snapshot(0)
    copy, before = StateCopy(), model.weight.detach().clone()
    copy.take(state, None)
    with torch.no_grad():
        model.weight.zero_()
    copy.restore()
    assert torch.equal(model.weight, before)
    assert isinstance(copy._kept, ScratchSnapshot) == is_in_file


def test_a_tensor_that_was_resized_gets_its_shape_back(snapshot):
    observed, other = torch.zeros(0), torch.ones(2)
    snapshot.take(0, [observed, other], [], [])
    observed.resize_(3).fill_(math.nan)
    assert snapshot.change_of(0) is None
    other.fill_(5)
    snapshot.restore()
    assert observed.shape == (0,)
    assert other.tolist() == [1, 1]
    observed.resize_(3).fill_(2)
    snapshot.take(1, [observed, other], [], [])
    observed.fill_(math.nan)
    snapshot.restore()
    assert observed.tolist() == [2, 2, 2]
