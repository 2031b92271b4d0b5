"""What is patched for a check comes in by the one manager, and goes out again."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stayfinite.patches import table
from stayfinite.preflight.capture.loop import Captor, Finished
from stayfinite.preflight.capture.own_checks import OwnChecks
from stayfinite.preflight.capture.patches import CapturePatches
from stayfinite.preflight.probes import Probe


@pytest.fixture
def probed():
    """A captor whose one group asks for these probes; what they showed is in the list."""
    opened = []

    def make(*names, num_first=1, **more):
        seen = []

        def conduct(subject):
            for name in names:
                seen.append((yield Probe(subject.batches[0], name, **more)))

        captor = Captor(num_first, conduct)
        opened.append(CapturePatches(captor))
        return captor, seen

    yield make
    for patches in opened:
        patches.close()


def training(num_rows=32):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    x = torch.randn(num_rows, 4)
    return model, optimizer, schedule, DataLoader(TensorDataset(x, x.sum(1)), batch_size=8)


def test_every_original_is_back_afterwards():
    names = [(nn.Module, "__call__"), (torch.autograd, "backward"), (DataLoader, "__iter__")]
    before = [getattr(*place) for place in names]
    rows = {(r.owner, r.name) for r in table()}
    patches = CapturePatches(Captor(1, lambda subject: iter(())))
    patches.captor.on_loaderless()
    during = [getattr(*place) for place in names]
    switches = {part for r in table() for part in r.switch.split(", ")}
    patches.close()
    assert switches >= {"check", "training", "loaders", "provenance"}
    assert all(a is not b for a, b in zip(during, before))
    assert [getattr(*place) for place in names] == before
    assert {(r.owner, r.name) for r in table()} == rows


def test_what_reads_numbers_is_not_patched():
    patches = CapturePatches(Captor(1, lambda subject: iter(())))
    patched = {f"{r.owner}.{r.name}" for r in table()}
    patches.close()
    assert not [p for p in patched if p.endswith(("isnan", "isinf", "isfinite", "item", "cycle"))]


def test_the_loop_gets_the_loaders_own_iterator_and_the_probes_batches(probed):
    captor, seen = probed("one", "two")
    model, optimizer, schedule, loader = training()
    plain = type(iter(DataLoader([1])))
    drawn = []
    with pytest.raises(Finished):
        for _ in range(9):
            iterator = iter(loader)
            assert type(iterator) is plain and len(iterator) == 4
            for x, y in iterator:
                drawn.append(x)
                loss = (model(x)[:, 0] - y).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    assert [s.name for s in seen] == ["one", "two"]
    assert seen[0].loss == seen[1].loss == pytest.approx(captor.steps[0].loss)
    assert all(torch.equal(d, drawn[0]) for d in drawn)  # the first batch again and again
    assert len(captor.steps) == 1


def test_nothing_has_moved_in_steps_that_were_only_tried(probed):
    probed("one", "two")
    model, optimizer, schedule, loader = training()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(Finished):
        for _ in range(9):
            for x, y in loader:
                optimizer.zero_grad()
                (model(x)[:, 0] - y).square().mean().backward()
                optimizer.step()
                schedule.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert schedule.last_epoch == 0
    assert not optimizer.state


def test_a_validation_gets_one_batch_an_epoch_while_probes_run(probed):
    probed("one", "two", "three")
    model, optimizer, _, loader = training()
    validation = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8)
    counts = []
    with pytest.raises(Finished):
        for _ in range(9):
            for x, y in loader:
                optimizer.zero_grad()
                (model(x)[:, 0] - y).square().mean().backward()
                optimizer.step()
                counts.append(sum(1 for _ in validation))
    assert counts == [4, 1, 1, 1]


def test_own_checks_are_reported_for_single_bad_numbers_only():
    seen = []
    bad = torch.tensor(float("inf"))
    fine = torch.tensor(1.0)
    with OwnChecks(seen.append):
        torch.isnan(bad)
        bad.isfinite()
        float(bad)
        bad.item()
        torch.isfinite(fine)
        fine.item()
        torch.isnan(torch.full((3,), float("nan")))
    assert len(seen) == 4 and all(value is bad for value in seen)
