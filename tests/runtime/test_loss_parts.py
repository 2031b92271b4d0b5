"""Policy `parts`: a loss that is a sum goes on without the part that is bad."""

import pytest
import torch
from torch import nn

from stayfinite import Guard
from stayfinite.runtime.recovery.loss_parts import by_parts, split_loss

X = torch.linspace(-1, 1, 20).reshape(5, 4)


def make_heads():
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(4, 3) for _ in range(4))


def losses(heads, dead=()):
    p = torch.stack([h(X) for h in heads]).softmax(-1)
    scale = torch.ones(4, 1, 1)
    for i in dead:
        scale[i] = 0
    return ((p * scale) ** 0.6).sum((-1, -2))  # the derivative at 0 is infinite


def grads(module):
    return {n: None if p.grad is None else p.grad.clone() for n, p in module.named_parameters()}


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dead", [(3,), (0, 2)])
def test_what_is_left_is_the_gradient_of_the_good_heads_alone(reduce, dead):
    heads, reported = make_heads(), []
    good = [i for i in range(4) if i not in dead]
    kept = losses(heads)[good].sum() / (4 if reduce == "mean" else 1)
    kept.backward()
    wanted = grads(heads)
    heads.zero_grad()
    with by_parts(lambda: list(heads.named_parameters()), reported.append):
        getattr(losses(heads, dead), reduce)().backward()
    for name, g in grads(heads).items():
        if int(name[0]) in dead:
            assert g is None  # not a zero: momentum and weight decay would move it
        else:
            assert torch.allclose(g, wanted[name])
    owner = f" ({dead[0]})" if len(dead) == 1 else ""
    assert reported[0].names == tuple(f"part {i} of 4{owner}" for i in dead)


def test_a_healthy_loss_has_the_very_same_gradient():
    heads, reported = make_heads(), []
    losses(heads).sum().backward()
    wanted = grads(heads)
    heads.zero_grad()
    with by_parts(lambda: list(heads.named_parameters()), reported.append):
        losses(heads).sum().backward()
    assert not reported and all(torch.equal(g, wanted[n]) for n, g in grads(heads).items())


def test_an_addend_whose_value_is_nan_is_left_out_and_the_shared_trunk_still_learns():
    torch.manual_seed(0)
    trunk, seen = nn.Linear(4, 1), []
    with by_parts(lambda: list(trunk.named_parameters()), seen.append):
        y = trunk(X)
        loss = 0.5 * y.square().mean() + 2 * (y * 0).log().mean()
        loss.backward()
    wanted = torch.autograd.grad(0.5 * trunk(X).square().mean(), trunk.weight)[0]
    assert torch.allclose(trunk.weight.grad, wanted)
    assert seen[0].names == ("part 1 of 2",)


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda w: w.exp().prod(), 1),
        (lambda w: w.exp().sum() * w.sum(), 1),
        (lambda w: (w.exp().sum() + w.sum()) / 2, 2),
        (lambda w: torch.stack([w[0].exp(), w[1].exp(), w[2].exp()]).mean(), 3),
        (lambda w: w.exp().sum() - 3 * w.sin().sum() + 1.0, 2),
        (lambda w: torch.ones(100).requires_grad_().exp().sum() + w.sum(), 2),
    ],
)
def test_what_counts_as_a_part(make, count):
    assert len(split_loss(make(torch.ones(3, requires_grad=True)))) == count


def test_nothing_of_it_is_left_behind():
    before = torch.Tensor.backward
    with pytest.raises(RuntimeError), by_parts(lambda: [], lambda left: None):
        raise RuntimeError
    assert torch.Tensor.backward is before


def step_loss(model, dead):
    return losses(model, dead).sum()


def test_a_guard_applies_the_good_parts_of_a_bad_step():
    plain, guarded = make_heads(), make_heads()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    other = torch.optim.SGD(guarded.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    with Guard(guarded, other, policy="parts") as guard:
        outcomes = [guard.step(step_loss, dead) for dead in ((), (3,), ())]
    for dead in ((), (3,), ()):
        sgd.zero_grad()
        good = [i for i in range(4) if i not in dead]
        losses(plain)[good].sum().backward()
        for i in dead:
            for p in plain[i].parameters():
                p.grad = None
        sgd.step()
    assert [o.applied for o in outcomes] == [True, True, True]
    assert guard.incidents[0].action.kind == "partial"
    for a, b in zip(plain.parameters(), guarded.parameters()):
        assert torch.allclose(a, b, atol=1e-6)


def test_a_loss_of_one_part_is_skipped_as_ever():
    model = nn.Linear(4, 1)
    before = [p.clone() for p in model.parameters()]
    with Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), policy="parts") as guard:
        outcome = guard.step(lambda m, x: (m(x) * 0).log().square().prod(), X)
    assert not outcome.applied and guard.incidents[-1].action.kind == "skipped"
    assert all(map(torch.equal, before, model.parameters()))
