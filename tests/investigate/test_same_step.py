"""What stands around the step that failed: graphs begun before it, optimizers that move first, numbers drawn by others."""

import pytest
import torch
from tests.launch import forked
from torch import nn
from torch.nn import functional as F

from stayfinite import Guard


class Deviation(nn.Module):
    def forward(self, x):
        return torch.cat([x, x.std(0).mean().expand(len(x), 1)], 1)


@pytest.mark.filterwarnings("ignore:std\\(\\)")
def test_a_graph_that_was_begun_before_the_bad_step_still_has_its_backward(tmp_path):
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
    critic = nn.Sequential(nn.Linear(4, 4), Deviation(), nn.Linear(5, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-2)
    opt_d = torch.optim.Adam(critic.parameters(), lr=1e-2)
    batches = [torch.randn(n, 4) for n in (6, 6, 6, 1, 6)]
    models = {"generator": generator, "critic": critic}
    with Guard(models, [opt_g, opt_d], run_dir=tmp_path) as guard:
        for real in guard(batches):
            fake = generator(torch.randn(len(real), 2))
            d_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
            opt_d.zero_grad()
            d_loss.backward()
            opt_d.step()
            g_loss = F.softplus(-critic(fake)).mean()
            opt_g.zero_grad()
            g_loss.backward()
            opt_g.step()
    incident = guard.incidents[0]
    assert incident.diagnosis.cause == "empty_reduction"
    assert any(e.outcome == "finite" for e in incident.diagnosis.experiments)
    assert all(p.isfinite().all() for m in models.values() for p in m.parameters())


class Climbing(torch.optim.SGD):
    """As the sharpness-aware ones do: up along the gradient first, then down from there."""

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        params = self.param_groups[0]["params"]
        size = 0.05 / torch.stack([p.grad.norm() for p in params]).norm()
        moves = [p.grad * size for p in params]
        torch._foreach_add_(params, moves)
        with torch.enable_grad():
            closure()
        torch._foreach_sub_(params, moves)
        super().step()
        return loss


def test_an_optimizer_that_corrupts_its_weights_between_two_evaluations_is_no_hardware(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = Climbing(model.parameters(), lr=0.1)
    batches = [torch.randn(4, 3) for _ in range(6)]
    batches[4] = batches[4] * 0.0
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for x in guard(batches):

            def closure(x=x):
                optimizer.zero_grad()
                loss = (x * model.weight).sum(1).add(1).relu().mean() + 0.0 * model.bias.sum()
                loss.backward()
                return loss

            optimizer.step(closure)
    (incident,) = guard.incidents
    assert incident.diagnosis.cause in ("zero_denominator", "optimizer_denominator")
    assert "size = 0.05 /" in incident.location.source
    assert all(p.isfinite().all() for p in model.parameters())


class World:
    """Its steps draw from the same generator as the model, and cannot be made twice."""

    def __init__(self):
        self.position = torch.zeros(4)
        self.num_steps = 0

    def step(self):
        self.num_steps += 1
        self.position = 0.9 * self.position + 0.02 * torch.binomial(
            torch.full((4,), 5.0), torch.full((4,), 0.5)
        )
        return self.position


def test_a_finite_replay_on_other_random_numbers_says_nothing_of_the_hardware(tmp_path):
    torch.manual_seed(3)
    model, world = nn.Linear(4, 1), World()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for _ in guard(range(30)):
            state = world.step()
            action = model(state) + torch.randn(8)
            loss = torch.log(2.3 - action.abs()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert world.num_steps == 30
    assert guard.incidents
    for incident in guard.incidents:
        assert incident.diagnosis.cause != "hardware_or_nondeterminism"
    said = "random numbers of this step could not be drawn again"
    (first,) = [i for i in guard.incidents if said in i.location.note][:1]
    assert first.diagnosis.cause == "domain_error"


def test_what_was_divided_by_almost_nothing_and_then_squared_is_no_growth_over_layers(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = [torch.randn(4, 3) for _ in range(8)]
    batches[5][2, 2] = -52.0
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for x in guard(batches):
            mean = model(x)[:, 0]
            std = F.softplus(model(x)[:, 1] + x[:, 2])
            residual = (x[:, 1] - mean) / std
            loss = 0.5 * (residual**2).mean() + std.log().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (incident,) = guard.incidents
    assert incident.diagnosis.cause == "zero_denominator"
    assert incident.location.source.startswith("loss = 0.5")
    assert "is by a number as small as" in incident.diagnosis.summary
    assert incident.diagnosis.observed["divisor.line"] == incident.location.line - 1


ACCUMULATED = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
rows = torch.randn(16, 3)
rows[8] = 0.0
for i in range(32):
    row = rows[i % 16]
    size = (model.weight * row).square().sum().sqrt()
    ((model(row).sum() - size) ** 2).backward()
    if i % 2 == 1:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_backward_that_was_over_when_its_step_failed_is_traced_the_next_time(tmp_path):
    (tmp_path / "train.py").write_text(ACCUMULATED, encoding="utf-8")
    done = forked(["-m", "stayfinite", "run", "--run-dir", "run", "train.py"], tmp_path)
    assert done.code == 0
    assert "the step adds up 2 backwards" in done.err
    assert "felt outside" not in done.err
    assert "born in SqrtBackward0" in done.err


def ranked(risk, time, events):
    order = time.sort(descending=True).indices
    risk, events = risk[order], events[order]
    return -((risk - risk.logcumsumexp(0)) * events).sum() / events.sum()


def test_a_tensor_that_is_sorted_in_a_function_is_not_taken_for_a_list(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x, time, events = torch.randn(24, 3), torch.rand(24), (torch.rand(24) < 0.7).float()
    events[16:20] = 0.0
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for i in guard(range(6)):
            part = slice(4 * i, 4 * i + 4)
            loss = ranked(model(x[part]).squeeze(1), time[part], events[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (incident,) = guard.incidents
    assert "events.sum()" in incident.location.source
    assert "batch is gone" not in incident.location.note
    assert incident.diagnosis.experiments
