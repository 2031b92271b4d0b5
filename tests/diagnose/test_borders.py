"""The borders between causes that look alike, each on both sides, under a real guard."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stayfinite import Guard
from stayfinite.patches import provenance


class Scale(nn.Module):
    def __init__(self, dtype=torch.float32, n=3):
        super().__init__()
        self.w = nn.Parameter(torch.ones(n, dtype=dtype))

    def forward(self, x):
        return x * self.w


def diagnosis(loss_fn, batches, model=None, lr=1e-3, optimizer=None):
    model = model or Scale()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=lr)
    with Guard(model, optimizer) as guard:
        for batch in batches:
            guard.step(loss_fn, batch)
            if guard.incidents:
                break
    assert guard.incidents, "nothing was noticed"
    return guard.incidents[0].diagnosis


ONES = torch.ones(2, 3)


def zero_at(value=0.0):
    x = ONES.clone()
    x[1, 2] = value
    return x


@pytest.mark.usefixtures("causes_only")
@pytest.mark.filterwarnings("ignore:std:UserWarning")  # what a user would see
@pytest.mark.parametrize(
    ("loss_fn", "bad", "cause"),
    [
        (lambda m, x: m(x).log().mean(), zero_at(), "log_of_zero"),
        (lambda m, x: m(x).log().mean(), zero_at(-1.0), "domain_error"),
        (lambda m, x: (1 / m(x)).mean(), zero_at(), "zero_denominator"),
        (lambda m, x: m(x).sqrt().mean(), zero_at(), "singular_gradient"),
        (lambda m, x: m(x).sqrt().mean(), zero_at(-1.0), "domain_error"),
        (lambda m, x: torch.where(x > 0, m(x).sqrt(), 0).mean(), zero_at(), "masked_branch_leak"),
        (lambda m, x: torch.where(x > 0, m(x).log(), 0).mean(), zero_at(), "masked_branch_leak"),
        (lambda m, x: ((x > 0) * m(x).sqrt()).mean(), zero_at(), "masked_branch_leak"),
        (lambda m, x: m(x).sqrt().square().mean(), zero_at(), "singular_gradient"),
        (
            lambda m, x: torch.where(x > 90, 0, m(x).exp()).mean(),
            zero_at(95.0),
            "masked_branch_leak",
        ),
        (lambda m, x: m(x).exp().mean(), zero_at(95.0), "exp_overflow"),
        (lambda m, x: m(x)[x > 2].mean(), ONES, "empty_reduction"),
        (lambda m, x: m(x)[:1].std(0).mean(), ONES, "empty_reduction"),
        (
            lambda m, x: m(x).masked_fill(x > 0, -torch.inf).softmax(1).mean(),
            ONES,
            "fully_masked_row",
        ),
        (
            lambda m, x: nn.functional.nll_loss(
                m(x).masked_fill(torch.tensor([True, False, False]), -torch.inf).log_softmax(1),
                torch.tensor([0, 1]),
            ),
            ONES,
            "infeasible_target",
        ),
        (lambda m, x: m(x).square().square().mean(), zero_at(3e18), "bad_input_data"),
        (lambda m, x: m(x).sum(), zero_at(float("nan")), "bad_input_data"),
    ],
)
def test_the_operation_decides(loss_fn, bad, cause):
    before = [torch.rand(2, 3) for _ in range(4)] if cause == "bad_input_data" else []
    batches = [*before, bad]
    found = diagnosis(loss_fn, batches)
    assert found.cause == cause, found.candidates
    assert any(e.outcome == "finite" for e in found.experiments)


@pytest.mark.usefixtures("causes_only")
@pytest.mark.parametrize(
    ("loss_fn", "bad", "cause"),
    [
        # 1e-8 is zero in float16: in float32 the same division is fine
        (lambda m, x: (x / (m(x) + 1e-8)).float().mean(), zero_at(), "low_precision_underflow"),
        # no epsilon at all: in float32 it is just as wrong
        (lambda m, x: (1 / m(x)).float().mean(), zero_at(), "zero_denominator"),
        (lambda m, x: (m(x) * 300).float().mean(), zero_at(300.0), "low_precision_overflow"),
        (lambda m, x: m(x).exp().float().mean(), zero_at(20.0), "low_precision_overflow"),
        (lambda m, x: m(x).exp().float().mean(), zero_at(120.0), "exp_overflow"),
        (lambda m, x: m(x).log().float().mean(), zero_at(), "log_of_zero"),
    ],
)
def test_half_precision_is_blamed_only_where_float32_helps(loss_fn, bad, cause):
    found = diagnosis(loss_fn, [bad.half()], Scale(torch.float16))
    assert found.cause == cause, found.candidates


def test_a_rate_that_is_too_high():
    torch.manual_seed(0)
    batches = [(torch.randn(8, 3) * 10, torch.randn(8)) for _ in range(40)]
    found = diagnosis(lambda m, b: (m(b[0]).sum(1) - b[1]).square().mean(), batches, lr=1.0)
    assert found.cause == "lr_divergence"
    # Refuted it must never be.
    (status,) = [f.status for f in found.fixes if f.experiment == "smaller_lr"]
    assert status in ("untried", "proved")


def test_a_schedule_that_hands_out_nan():
    model = Scale()
    optimizer = torch.optim.SGD(model.parameters(), lr=float("nan"))
    found = diagnosis(lambda m, x: m(x).mean(), [ONES], model, optimizer=optimizer)
    assert found.cause == "bad_schedule"


def test_adam_without_epsilon():
    model = Scale()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, eps=0.0)
    found = diagnosis(lambda m, x: m(x)[:, :2].mean(), [ONES], model, optimizer=optimizer)
    assert found.cause == "optimizer_denominator"
    assert any("eps=1e-8" in f.title for f in found.fixes)
    assert [e.outcome for e in found.experiments if e.name == "larger_eps"] == ["finite"]


def test_a_restored_state_and_a_constructed_one():
    for restore, cause in ((True, "corrupt_checkpoint"), (False, "bad_initialization")):
        provenance.install()
        model = Scale()
        bad = torch.tensor([1.0, 0.0, 1.0]) / torch.tensor([1.0, 0.0, 1.0])
        if restore:
            model.load_state_dict({"w": bad})
        else:
            model.w.data = bad
        assert diagnosis(lambda m, x: m(x).mean(), [ONES], model).cause == cause


class Stored(Dataset):
    """Sample 5 is bad: `how` says who made it so."""

    def __init__(self, how):
        self.how = how
        self.rows = [{"x": [1.0, 2.0, float(i)], "y": 1.0} for i in range(12)]
        if how.startswith("stored"):
            self.rows[5]["x"][1] = float("inf")
        if how == "numpy beside a stored one":
            self.rows[11]["x"][1] = float("inf")
        self.table = torch.tensor([row["x"] for row in self.rows])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        import numpy as np

        if self.how == "stored, then divided":
            x, _ = np.array(self.rows[i]["x"]) / 2, round(self.rows[i]["y"])
            return torch.from_numpy(x).float()
        x = np.array(self.rows[i]["x"])
        if self.how.startswith("numpy") and i == 5:
            with np.errstate(all="ignore"):
                x = x / np.zeros(3)
        if self.how == "torch" and i == 5:
            return (self.table[i] * 0).log()
        return torch.from_numpy(x).float()


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("stored", "bad_input_data"),
        ("stored, then divided", "bad_input_data"),
        ("numpy", "bad_preprocessing"),
        ("numpy beside a stored one", "bad_preprocessing"),
        ("torch", "bad_preprocessing"),
    ],
)
def test_who_made_the_sample_bad(how, cause):
    loader = DataLoader(Stored(how), batch_size=4)
    model = Scale()
    with Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3)) as guard:
        for batch in loader:
            guard.step(lambda m, x: m(x).mean(), batch)
    incident = guard.incidents[0]
    assert incident.diagnosis.cause == cause
    assert incident.diagnosis.dataset_indices == (5,)
    if cause == "bad_preprocessing":
        assert incident.location.source.startswith(("x = x / np", "return (self.table[i] * 0).log"))


def test_a_saturating_exp_is_no_remedy_where_it_is_added_up():
    """Two values at the limit of float32 have no finite sum; and the proof never tried that form."""

    def normalized(m, x):
        e = m(x).exp()
        return (e / e.sum()).square().sum()

    def weighed(m, x):
        return (m(x).exp() * 1e-30).tanh().mean()

    found = diagnosis(normalized, [ONES, zero_at(95.0)])
    assert found.cause == "exp_overflow"
    assert not any("safe_exp" in fix.title for fix in found.fixes)
    found = diagnosis(weighed, [ONES, zero_at(95.0)])
    assert (found.cause, found.fixes[0].remedy) == ("exp_overflow", "bound_exp")
    assert not any("safe_exp" in fix.title for fix in found.fixes)  # a bound was proved
