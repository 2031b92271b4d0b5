"""A healthy step, operator by operator, with places; nothing is changed by looking."""

import pytest
import torch
from tests.foresee.judging import capture_steps
from torch import nn

from stayfinite.foresee.capture import StepCapture
from stayfinite.foresee.tape import Opaque, refs_in
from stayfinite.locate.modules import name_modules
from stayfinite.locate.notes import SourceRef


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    monkeypatch.setattr(StepCapture, "is_strict", True)


def training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(3, 4)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean().sqrt()
        loss.backward()
        optimizer.step()

    sources = [SourceRef("batch", "batch", x)]
    sources += [SourceRef("parameter", n, p) for n, p in model.named_parameters()]
    return model, step, sources


def test_a_step_is_captured_with_its_phases_lines_and_modules():
    model, step, sources = training()
    taken = capture_steps(step, sources, name_modules({"": model}))
    found = [c.operation for c in taken.calls]
    assert [o.index for o in found] == list(range(len(found)))
    assert {o.phase for o in found} == {"forward", "backward", "optimizer"}
    linear = next(o for o in found if o.op == "aten.addmm")
    assert (linear.module, linear.phase, linear.dtype) == ("0", "forward", "float32")
    assert linear.file == __file__
    assert linear.seen_lo < linear.seen_hi
    root = next(o for o in found if o.node == "SqrtBackward0")
    assert root.source == "loss = model(x).square().mean().sqrt()"
    assert not taken.errors


def test_parts_have_the_values_from_before_the_step():
    model, step, sources = training()
    before = model[0].weight.detach().clone()
    taken = capture_steps(step, sources)
    part = next(p for p in taken.parts if p.name == "0.weight")
    kept = taken.sources[part.ref.storage].values
    assert torch.equal(kept.view(8, 4), before)
    assert not torch.equal(model[0].weight, before)


def test_the_captured_training_goes_the_same_way_as_the_plain_one():
    plain, step, _ = training()
    step()
    step()
    watched, step, sources = training()
    taken = capture_steps(step, sources, num_steps=2)
    assert taken.num_steps == 2
    assert {c.operation.step for c in taken.calls} == {0, 1}
    for a, b in zip(plain.parameters(), watched.parameters()):
        assert torch.equal(a, b)


def test_memory_that_is_used_again_has_another_number():
    def step():
        for _ in range(4):
            torch.ones(1000).add(1)

    taken = capture_steps(step)
    made = [r.storage for c in taken.calls for r in refs_in(c.results)]
    assert len(set(made)) == len(made) == 8


def test_a_view_keeps_the_number_of_its_memory():
    def step():
        x = torch.ones(4, 2)
        x.t()[0].mul_(2)

    taken = capture_steps(step)
    assert len({r.storage for c in taken.calls for r in refs_in(c.results)}) == 1
    assert taken.calls[-1].is_written


def test_a_sparse_tensor_is_opaque_and_no_error():
    taken = capture_steps(lambda: torch.eye(3).to_sparse().to_dense())
    assert any(isinstance(c.results, Opaque) for c in taken.calls)
    assert not taken.errors


def test_the_dtype_is_the_one_of_autocast():
    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.ones(2, 2) @ torch.ones(2, 2)

    found = {o.op: o for o in (c.operation for c in capture_steps(step).calls)}
    assert found["aten.mm"].dtype == "bfloat16"
