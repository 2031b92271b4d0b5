"""Wires hand calls on and are taken out completely; notes change nothing."""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stayfinite.observe import witness as witness_module
from stayfinite.observe.wires import Wires
from stayfinite.observe.witness import witness


class Listener:
    """Writes down what it hears and lets everything happen."""

    def __init__(self):
        self.heard = []

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)

        def hear(*args, **kwargs):
            self.heard.append(name)
            call = args[-1] if args and callable(args[-1]) else None
            if name == "on_optimizer_step":
                return call(args[1])
            return call() if call is not None and not isinstance(call, nn.Module) else None

        return hear

    def before_backward(self, loss):
        return False

    def before_step(self, optimizer):
        return False

    def stream(self, owner, inner):
        self.heard.append("stream")
        return inner


@contextlib.contextmanager
def wired(with_loaders=True):
    listener = Listener()
    wires = Wires(listener, with_loaders=with_loaders)
    try:
        yield listener
    finally:
        wires.close()


def train():
    """A training that touches everything; returns the final weights."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for (x,) in DataLoader(TensorDataset(torch.randn(6, 2)), batch_size=2, shuffle=True):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        if not torch.isfinite(loss):
            raise AssertionError
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return model.weight.detach().clone(), optimizer.param_groups[0]["lr"]


def snapshot_of_torch():
    """Everything in torch's namespaces that a wire could replace, by identity."""
    homes = [
        torch, torch.Tensor, torch.autograd, torch.nn.utils, torch.nn.utils.clip_grad,
        torch.optim.Optimizer, torch.optim.SGD, torch.optim.Adam, torch.optim.LBFGS,
        torch.amp.GradScaler, DataLoader, torch.optim.lr_scheduler, nn.Module, torch.serialization,
        torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.StepLR,
        torch.optim.lr_scheduler.OneCycleLR, torch.optim.lr_scheduler.ReduceLROnPlateau,
    ]  # fmt: skip
    return {(str(h), k): id(v) for h in homes for k, v in vars(h).items() if not k.startswith("_a")}


def test_every_call_is_heard_and_nothing_changes():
    plain = train()
    with wired() as listener:
        found = train()
    assert torch.equal(found[0], plain[0])
    assert found[1] == plain[1]
    assert {
        "stream", "on_optimizer", "on_scheduler", "on_own_check", "on_backward", "on_clip",
        "on_optimizer_step", "on_scheduler_step",
    } <= set(listener.heard)  # fmt: skip
    assert listener.heard.count("on_backward") == 3
    assert listener.heard.count("on_optimizer_step") == 3


def test_close_puts_every_original_back():
    train()
    before = snapshot_of_torch()
    with wired():
        train()
        assert snapshot_of_torch() != before
    assert snapshot_of_torch() == before
    with wired() as listener:
        pass
    train()
    assert listener.heard == []


def test_close_after_an_error_puts_every_original_back():
    before = snapshot_of_torch()
    with pytest.raises(KeyError), wired():
        raise KeyError
    assert snapshot_of_torch() == before


def test_wrapped_functions_keep_their_names():
    with wired():
        assert torch.Tensor.backward.__name__ == "backward"
        assert torch.nn.utils.clip_grad_norm_.__name__ == "clip_grad_norm_"
        assert torch.isnan.__name__ == "isnan"


def test_a_direct_call_of_autograd_backward_is_heard_once():
    x = torch.ones(2, requires_grad=True)
    with wired() as listener:
        torch.autograd.backward([x.sum()])
    assert listener.heard == ["on_backward"]
    assert torch.equal(x.grad, torch.ones(2))


def test_an_optimizer_class_of_the_users_own_is_heard_once_per_step():
    class Mine(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    with wired() as listener:
        weight = nn.Parameter(torch.ones(1))
        optimizer = Mine([weight], lr=0.1)
        weight.grad = torch.ones(1)
        optimizer.step()
    assert listener.heard.count("on_optimizer_step") == 1
    assert weight.item() == pytest.approx(0.9)


def test_without_loaders_the_loader_is_left_alone():
    before = DataLoader.__iter__
    with wired(with_loaders=False):
        assert DataLoader.__iter__ is before


# -- notes --------------------------------------------------------------------------------------


@pytest.fixture
def noting():
    witness_module.install()


def test_a_restore_is_noted_with_its_file(noting, tmp_path):
    model = nn.Linear(2, 1)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    assert witness.restore_of(model) is None
    result = model.load_state_dict(torch.load(tmp_path / "m.pt"))
    assert not result.missing_keys
    assert witness.restore_of(model).path == str(tmp_path / "m.pt")


def test_notes_do_not_keep_models_alive(noting):
    import gc
    import weakref

    model = nn.Linear(2, 1)
    model.load_state_dict(model.state_dict())
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_indices_of_a_batch(noting, num_workers):
    loader = DataLoader(list(range(10)), batch_size=4, num_workers=num_workers)
    assert [witness.batch_indices for _ in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_shuffled_indices_are_those_of_the_batch(noting):
    torch.manual_seed(0)
    for batch in DataLoader(list(range(20)), batch_size=4, shuffle=True):
        assert witness.batch_indices == batch.tolist()


def test_loading_is_what_it_was(noting, tmp_path):
    data = {"a": torch.ones(2), "b": [1, "x"]}
    torch.save(data, tmp_path / "d.pt")
    with open(tmp_path / "d.pt", "rb") as file:
        found = torch.load(file, weights_only=True)
    assert torch.equal(found["a"], data["a"])
    assert found["b"] == data["b"]
    assert torch.load.__name__ == "load"
