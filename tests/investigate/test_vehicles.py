"""Loops whose bodies are harder to compute again than `loss_fn(model(x), y)`."""

import sys
import textwrap

import pytest
import torch
from tests.launch import forked
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stayfinite import Guard


def data(bad: int | None = 5, num: int = 16) -> DataLoader:
    torch.manual_seed(0)
    x = torch.rand(num, 4) + 0.5
    if bad is not None:
        x[bad] = 0.0
    return DataLoader(TensorDataset(x), batch_size=1)


class WithAverage(nn.Module):
    """A loss that is measured by its own running average, which it writes in place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("average", torch.ones(()))

    def forward(self, x):
        loss = self.linear(x).square().mean() + x.sum(1).log().mean().square()
        self.average.lerp_(loss.detach(), 0.1)
        return loss / self.average.clone()


def test_a_buffer_that_the_body_writes_is_put_back_before_it_is_computed_again(tmp_path):
    model = WithAverage()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    guard = Guard(model, optimizer, run_dir=tmp_path)
    for (x,) in guard(data()):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
    (incident,) = guard.incidents
    assert (incident.event.step, incident.location.op) == (5, "aten.log")
    assert incident.diagnosis.experiments
    assert model.average.isfinite()
    guard.close()


def test_batches_that_the_body_draws_in_a_loop_of_its_own(tmp_path):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    guard = Guard(model, optimizer, run_dir=tmp_path)
    batches = iter(guard(data()))
    for _ in range(4):
        optimizer.zero_grad()
        for _ in range(4):
            (x,) = next(batches)
            loss = model(x).square().mean() + x.sum(1).log().mean()
            (loss / 4).backward()
        optimizer.step()
    (incident,) = guard.incidents
    assert (incident.event.step, incident.location.op) == (5, "aten.log")
    guard.close()


def test_a_step_for_several_batches_is_made_with_the_last_one_only(tmp_path):
    """`unscale_` for each of them would raise, and the proof would be missing."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    guard = Guard(model, optimizer, scaler=scaler, run_dir=tmp_path)
    for i, (x,) in enumerate(guard(data())):
        loss = model(x).square().mean() + x.sum(1).log().mean()
        scaler.scale(loss / 4).backward()
        if (i + 1) % 4 == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    (incident,) = guard.incidents
    assert (incident.event.step, incident.location.op) == (5, "aten.log")
    assert [e.outcome for e in incident.diagnosis.experiments].count("finite") >= 1
    guard.close()


SCALED = """
    import argparse
    import torch

    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int)
        args = parser.parse_args()
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)
        for _ in range(args.steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = (model(torch.randn(8, 4)) - 1).square().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        print("to the end", scaler.get_scale())

    main()
"""


def test_a_replay_that_leaves_the_program_ends_itself_only():
    model = nn.Linear(4, 1)
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    calls = []

    def loss_fn(model, batch):
        calls.append(batch)
        if len(calls) > 1:
            sys.exit(2)
        return model(batch).sum() / torch.zeros(())

    with guard:
        outcome = guard.step(loss_fn, torch.ones(2, 4))
    assert len(calls) > 1 and not outcome.applied
    assert not outcome.incident.location.is_reproduced


@pytest.mark.parametrize("replay", ["auto", "full"])
def test_a_scale_that_is_looked_for_is_no_incident_whoever_replays(tmp_path, replay):
    """From `main` on there would be a new scaler, and a parser that knows no argument."""
    (tmp_path / "train.py").write_text(textwrap.dedent(SCALED), encoding="utf-8")
    command = ["-m", "stayfinite", "run", "--replay", replay, "--run-dir", "run"]
    done = forked([*command, "train.py", "--steps", "6"], tmp_path)
    assert (done.code, done.out.split()[:3]) == (0, ["to", "the", "end"]), done.err
    assert not list(tmp_path.glob("run/incidents/*"))


class Reversible(nn.Module):
    """It keeps a statistic on itself for its second call, which reads it before it is computed anew."""

    def forward(self, x, mode):
        if mode == "norm":
            self.spread = x.std(1, keepdim=True)
            return x / self.spread  # HERE
        return x * self.spread


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.reversible, self.linear = Reversible(), nn.Linear(4, 4)

    def forward(self, x):
        return self.reversible(self.linear(self.reversible(x, "norm")), "denorm")


def forecast_with(model, folder):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, run_dir=folder) as guard:
        for (x,) in guard(data(bad=7)):
            out = model(x)
            loss = (out - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return guard.incidents


def test_a_layer_that_keeps_a_statistic_for_its_second_call_is_traced(tmp_path):
    (incident,) = forecast_with(Forecaster(), tmp_path)
    assert (incident.event.step, incident.location.op) == (7, "aten.div")
    assert incident.location.source.endswith("# HERE") and incident.location.is_reproduced
    assert "batch is gone" not in incident.location.note  # it is the step's own
    assert incident.diagnosis.cause == "zero_denominator"
    assert incident.diagnosis.fixes[0].status == "proved"
