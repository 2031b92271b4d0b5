"""Steps without torch's label for profilers are the same steps, and nobody's hook is passed by."""

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from stayfinite import Guard
from stayfinite.observe.labels import without_labels
from stayfinite.observe.wires import Listener, Wires


class OwnSgd(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"])


def make(kind):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    return model, kind(model.parameters())


BATCHES = [torch.randn(8, 4, generator=torch.Generator().manual_seed(1)) for _ in range(5)]
KINDS = [
    lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    OwnSgd,
]


def loss_of(model, batch):
    return model(batch).square().mean()


def train(model, optimizer, batches):
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def run(form, model, optimizer):
    with Guard(model, optimizer) as guard:
        if form == "loop":
            train(model, optimizer, guard(BATCHES))
        else:
            for batch in BATCHES:
                guard.step(loss_of, batch)


@pytest.mark.parametrize("form", ["step", "loop"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_weights_bit_for_bit(form, kind):
    model, optimizer = make(kind)
    train(model, optimizer, BATCHES)
    other, guarded = make(kind)
    run(form, other, guarded)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


@pytest.mark.parametrize("form", ["step", "loop"])
def test_hooks_round_a_step_are_called(form):
    model, optimizer = make(KINDS[1])
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    run(form, model, optimizer)
    assert seen == ["before", "after"] * len(BATCHES)


@pytest.mark.parametrize("form", ["step", "loop"])
def test_hooks_for_all_optimizers_are_called(form):
    model, optimizer = make(KINDS[1])
    seen = []
    handle = register_optimizer_step_pre_hook(lambda *_: seen.append(1))
    try:
        run(form, model, optimizer)
    finally:
        handle.remove()
    assert len(seen) == len(BATCHES)


@pytest.mark.parametrize("form", ["step", "loop"])
def test_a_profiler_finds_its_labels(form):
    model, optimizer = make(KINDS[1])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(form, model, optimizer)
    count = {e.key: e.count for e in profile.key_averages()}
    assert count["Optimizer.step#SGD.step"] == len(BATCHES)
    assert count["Optimizer.zero_grad#SGD.zero_grad"] == len(BATCHES)


def test_gradients_are_zeroed_in_place_where_the_loop_asks_for_it():
    model, optimizer = make(KINDS[1])
    kept = []
    with Guard(model, optimizer) as guard:
        for batch in guard(BATCHES):
            optimizer.zero_grad(set_to_none=False)
            kept.append(model.weight.grad)
            loss_of(model, batch).backward()
            optimizer.step()
    assert kept[0] is None and all(g is kept[1] for g in kept[2:])


def test_a_scheduler_still_sees_its_optimizer_step():
    model, optimizer = make(KINDS[1])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)  # warns if no step came first
    with Guard(model, optimizer) as guard:
        for batch in guard(BATCHES):
            train(model, optimizer, [batch])
            scheduler.step()
    assert scheduler.get_last_lr() == [0.1 * 0.5 ** len(BATCHES)]


def test_what_a_call_raises_leaves_the_labels_in_place():
    def fail():
        raise ValueError("no")

    before = torch.autograd.profiler.record_function
    with pytest.raises(ValueError, match="no"):
        without_labels(fail)
    assert torch.autograd.profiler.record_function is before


def test_a_loader_s_label_is_there_for_a_profiler():
    loader = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2)
    wires = Wires(Listener(), with_loaders=True)
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            assert len(list(loader)) == 2
        assert any("DataLoader" in e.key for e in profile.key_averages())
        assert len(list(loader)) == 2
    finally:
        wires.close()
