"""What a device would feel of a healthy step: kernels and reads, counted by a dispatch mode."""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from stayfinite import Guard, Settings
from stayfinite.numerics.health import FiniteFlag
from stayfinite.runtime.deferral import Deferral

_NO_KERNEL = {
    "aten::detach",
    "aten::view",
    "aten::reshape",
    "aten::alias",
    "aten::t",
    "aten::expand",
}
_READS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"}
OPTIMIZERS = {
    "fused AdamW": (torch.optim.AdamW, {"fused": True}),
    "fused SGD": (torch.optim.SGD, {"fused": True}),
    "foreach Adam": (torch.optim.Adam, {"foreach": True}),
    "plain SGD": (torch.optim.SGD, {"foreach": False}),
}


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.kernels, self.reads = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name
        if name in _READS:
            self.reads.append(name)
        elif name not in _NO_KERNEL:
            self.kernels.append(name)
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch):
    """The flag is not read where it lies, and a verdict is worth putting off."""
    made = FiniteFlag.__init__

    def elsewhere(flag, device):
        made(flag, device)
        flag.here = None

    monkeypatch.setattr(FiniteFlag, "__init__", elsewhere)
    monkeypatch.setattr(Deferral, "defers_on_host", True)


def counted(kind, num_layers, form, deferred):
    """(kernels, reads) of one step amid a healthy training."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(num_layers)))
    cls, options = OPTIMIZERS[kind]
    optimizer = cls(model.parameters(), lr=0.01, **options)
    settings = Settings(deferred=deferred, budget=1e-9)
    guard = Guard(model, optimizer, settings=settings) if form != "none" else None
    # A deep check in the middle would not be an ordinary step; it keeps to its own budget.
    batches, count = [torch.ones(2, 4)] * 6, Count()
    for i, x in enumerate(guard(batches) if form == "loop" else batches):
        with count if i == 4 else contextlib.nullcontext():
            if form == "step":
                guard.step(lambda m, x: m(x).pow(2).mean(), x)
                continue
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
    if guard is not None:
        guard.close()
        assert guard.incidents == []
    return len(count.kernels), len(count.reads)


@pytest.mark.parametrize("num_layers", [1, 40])
@pytest.mark.parametrize("form", ["step", "loop"])
@pytest.mark.parametrize("kind", ["fused AdamW", "fused SGD"])
def test_a_deferred_step_costs_three_kernels_and_no_read(kind, form, num_layers):
    """One of them is the optimizer's own: Adam takes a step that was skipped out of its count."""
    plain, plain_reads = counted(kind, num_layers, "none", True)
    kernels, reads = counted(kind, num_layers, form, True)
    assert kernels - plain <= 3
    assert reads == plain_reads == 0


def test_the_loss_counts_no_change():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    with Guard(model, optimizer, settings=Settings(deferred=True)) as guard:
        for x in guard([torch.ones(2, 4)] * 3):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward(retain_graph=True)
            before, version = loss.item(), loss._version
            optimizer.step()
            assert (loss.item(), loss._version) == (before, version)


@pytest.mark.parametrize("form", ["step", "loop"])
@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_an_ordinary_step_costs_the_same_whatever_the_number_of_tensors(kind, form):
    extra = []
    for num_layers in (1, 40):
        plain, plain_reads = counted(kind, num_layers, "none", False)
        kernels, reads = counted(kind, num_layers, form, False)
        extra.append((kernels - plain, reads - plain_reads))
    assert extra[0] == extra[1]
    # Of the four, two widen flag and loss to float64, which is done in the host's memory only.
    assert extra[0][0] <= 4 and extra[0][1] <= 1
