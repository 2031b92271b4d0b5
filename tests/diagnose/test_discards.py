"""A leak is named only where a selection throws away exactly the elements that went bad."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stayfinite import Guard
from stayfinite.diagnose.words import holds
from stayfinite.report.text import render


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.w


def incident_of(loss_fn, batch, model=None, optimizer=None):
    model = model or Scale()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-3)
    with Guard(model, optimizer) as guard:
        guard.step(loss_fn, batch)
    assert guard.incidents, "nothing was noticed"
    return guard.incidents[0]


def batch(value=0.0):
    x = torch.tensor([[0.5, 2.0, 0.7], [1.5, 3.0, 0.9]])
    x[1, 2] = value
    return x


def hinge(m, x):
    """The relu shuts for another reason than the root: no mask."""
    return F.relu(m(x).sqrt() - m(x + 5) + 1).mean() + m(x).mean()


def gathered_later(m, x):
    """A gather that leaves others out, and a derivative that is zero at the bad place."""
    d = m(x)
    unit = d / (d.square().sqrt() + 1e-8)
    return unit[torch.tensor([0, 1, 1])][:, torch.tensor([0, 2])].mean()


def learned_zero(m, x):
    y = m(x)
    return (y.sqrt() * (y - y.detach() + y)).mean()


@pytest.mark.usefixtures("causes_only")
@pytest.mark.parametrize(
    ("loss_fn", "cause"),
    [
        (hinge, "singular_gradient"),
        (gathered_later, "singular_gradient"),
        (learned_zero, "singular_gradient"),
        (lambda m, x: m(x).sqrt().clamp(min=0.1).mean(), "masked_branch_leak"),
        (lambda m, x: torch.maximum(m(x).sqrt(), x + 0.1).mean(), "masked_branch_leak"),
        (lambda m, x: m(x).sqrt()[:, :2].mean(), "masked_branch_leak"),
        (lambda m, x: m(x).sqrt()[x > 0].mean(), "masked_branch_leak"),
        (lambda m, x: m(x).sqrt()[torch.tensor([0])].mean(), "masked_branch_leak"),
        (lambda m, x: (m(x).sqrt() * (x > 0).float() / 5).mean(), "masked_branch_leak"),
        (lambda m, x: (m(x).sqrt() + m(x)).masked_fill(x == 0, 0).sum(), "masked_branch_leak"),
        (lambda m, x: m(x).log().clamp(min=-9).mean(), "masked_branch_leak"),
        (lambda m, x: F.logsigmoid(-torch.log1p(m(x) - 1)).mean(), "log_of_zero"),
        (lambda m, x: torch.exp(-1 / m(x)).mean(), "zero_denominator"),
    ],
)
def test_who_made_the_zero_decides(loss_fn, cause):
    diagnosis = incident_of(loss_fn, batch()).diagnosis
    assert diagnosis.cause == cause, diagnosis.summary
    assert not diagnosis.fixes[0].title.startswith("or ")


def test_the_mask_is_called_by_its_name():
    found = incident_of(lambda m, x: torch.where(x > 0, m(x).sqrt(), 0).mean(), batch())
    assert "torch.where discards it" in found.diagnosis.summary
    assert "through sqrt at test_discards.py" in found.diagnosis.summary


def masked_error(m, x):
    seen = ~torch.isnan(x)
    error = (m(torch.ones(2, 3)) - x) ** 2
    return torch.where(seen, error, torch.zeros_like(error)).sum() / seen.sum()


def test_a_gap_that_the_loss_masks_comes_back_as_a_leak():
    found = incident_of(masked_error, batch(float("nan")))
    assert (found.event.phase, found.location.op) == ("backward", "PowBackward0")
    assert found.location.source == "error = (m(torch.ones(2, 3)) - x) ** 2"
    assert found.diagnosis.cause == "masked_branch_leak"
    assert "1 non-finite value, which torch.where leaves out of the loss" in found.diagnosis.summary
    fixes = [f for f in found.diagnosis.fixes if f.diff is None]
    assert [f.title[:34] for f in fixes] == ["fill the gaps before the arithmetic"[:34]]


def test_a_gap_that_reaches_the_loss_is_bad_data():
    found = incident_of(lambda m, x: m(x).sum(), batch(float("nan")))
    assert found.diagnosis.cause == "bad_input_data"
    assert "with 1 value that is not finite" in found.diagnosis.summary


class ByItsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / grad.norm(p=1)


def test_a_division_in_a_hand_written_backward():
    found = incident_of(lambda m, x: (ByItsNorm.apply(m(x)) - 9).relu().mean(), batch())
    assert found.location.source == "return grad / grad.norm(p=1)"
    assert "ByItsNorm.apply" in found.location.library_source
    assert "\n  called at" in render(found)
    assert found.diagnosis.cause == "zero_denominator"
    assert "divides by 1 value that is exactly zero" in found.diagnosis.summary
    assert found.diagnosis.fixes[0].status == "proved"
    assert "+        return grad / " in found.diagnosis.fixes[0].diff


def second_derivative(m, x):
    x = x.clone().requires_grad_()
    y = m(x) ** 1.5
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    return second.mean()


def test_a_second_derivative_is_blamed_on_the_forward_line():
    found = incident_of(second_derivative, batch())
    assert found.location.source == "y = m(x) ** 1.5"
    assert found.diagnosis.cause == "singular_gradient"
    assert found.diagnosis.evidence == ("1 of 6 elements is at that point",)
    assert "second derivative of pow" in found.diagnosis.summary
    assert not any("safe_pow" in fix.title for fix in found.diagnosis.fixes)


def test_a_weight_norm_of_zeros():
    model = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 1))
    with torch.no_grad():
        model.parametrizations.weight.original1.zero_()
    found = incident_of(lambda m, x: m(x).mean(), batch(), model)
    assert found.diagnosis.cause == "zero_denominator"
    assert "parametrizations.weight.original1 holds 3 zeros in 3 values" in found.diagnosis.summary


def test_an_optimizers_own_root_is_answered_with_a_setting():
    model = Scale()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, centered=True)
    model(batch(1.0)).mean().backward()
    optimizer.step()
    optimizer.state[model.w]["grad_avg"].fill_(1.0)
    found = incident_of(lambda m, x: m(x).mean(), batch(1.0), model, optimizer)
    assert found.diagnosis.cause == "domain_error"
    assert "RMSprop takes the sqrt of" in found.diagnosis.summary
    assert "RMSprop: set centered=False" in [fix.title for fix in found.diagnosis.fixes]


def test_an_operator_without_a_rule_of_its_own_is_described():
    found = incident_of(lambda m, x: torch.special.ndtri(m(x) + 1).mean(), batch())
    assert found.diagnosis.cause == "domain_error"
    assert "gave NaN: it is not defined for some of them" in found.diagnosis.summary


def test_log_space_is_offered_first_only_where_a_probability_is_seen():
    plain = incident_of(lambda m, x: m(x).log().sum(), batch()).diagnosis.fixes
    assert (plain[0].status, plain[0].remedy) == ("proved", "floor_log")  # says what safe_log would
    plain = [f for f in plain if f.diff is None]
    assert not any("safe_log" in f.title for f in plain)
    assert "if it is a probability, stay in log space" in plain[0].title
    seen = incident_of(lambda m, x: torch.log(torch.sigmoid(m(x) - 999)).sum(), batch()).diagnosis
    assert seen.fixes[0].status == "proved"
    assert "logsigmoid(m(x) - 999)" in seen.fixes[0].diff


@pytest.mark.parametrize(
    ("source", "op", "has"),
    [
        ("opt.step()", "sqrt", False),
        ("u = grad(a, b)[0]", "pow", False),
        ("y = x.sqrt().sum(", "sqrt", True),
        ("n = a // b", "div", False),
        ("loss = a / b", "div", True),
        ("torch.linalg.vector_norm(x)", "norm", True),
        ("torch.log1p(x)", "log", False),
        (None, "log", False),
    ],
)
def test_a_rewrite_needs_the_call_on_the_line(source, op, has):
    assert holds(source, op) is has
