"""Traps that others fell into, the wrong way beside ours: resuming, clamping, unusual tensors."""

import pytest
import torch
from torch import nn

from stayfinite import Guard, Settings, finite_sum

FEW = Settings(diagnose=False, budget=1e-9, max_batches=3)


def test_clamping_a_loss_kills_its_gradient():
    """`clamp(max=100)` gives a number that looks healthy, and nothing is learned from it."""
    weight = torch.tensor(30.0, requires_grad=True)
    torch.clamp(weight**2, max=100.0).backward()
    assert weight.grad == 0
    weight.grad = None
    finite_sum({"latent": weight**2, "text": weight * float("nan")}).backward()
    assert weight.grad == 60


def test_a_resumed_schedule_overrides_the_config(tmp_path):
    """Seed 002: the config said 1e-4, the checkpoint's OneCycleLR went on towards 5e-4."""

    def parts(lr):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=100)
        return model, optimizer, scheduler

    _, optimizer, scheduler = parts(5e-4)
    for _ in range(30):
        optimizer.step()
        scheduler.step()
    saved = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    torch.save(saved, tmp_path / "epoch_28.pt")

    model, optimizer, scheduler = parts(1e-4)
    with Guard(model, optimizer, scheduler) as guard:
        saved = torch.load(tmp_path / "epoch_28.pt")
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    assert optimizer.param_groups[0]["lr"] > 4e-4, "the trap is not there any more"
    (warning,) = guard.warnings
    assert "the script says lr 0.0001" in warning.message
    assert "max_lr 0.0005" in warning.message
    assert "epoch_28.pt" in warning.message


class Unusual(nn.Module):
    """Unused, integer, complex, empty, 0-dim and sparsely updated parameters and buffers."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 3, sparse=True)
        self.scale = nn.Parameter(torch.ones(()))
        self.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
        self.register_buffer("flags", torch.tensor([True, False]))

    def forward(self, batch):
        self.count += 1
        rows = self.table(batch["index"]) * self.scale
        waves = (rows.mean(0) * self.phase).abs().sum()
        return {"loss": waves * batch["factor"] + self.empty.sum()}


@pytest.mark.parametrize("policy", ["skip", "rollback"])
@pytest.mark.parametrize("form", ["step", "loader"])
def test_unusual_tensors_neither_blind_the_sentinel_nor_break_a_rollback(policy, form):
    def run(data, policy):
        torch.manual_seed(0)
        model = Unusual()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Guard(model, optimizer, policy=policy, settings=FEW) as guard:
            for batch in guard(data) if form == "loader" else data:
                if form == "step":
                    guard.step(lambda m, b: m(b)["loss"], batch)
                else:
                    optimizer.zero_grad()
                    model(batch)["loss"].backward()
                    optimizer.step()
        return guard, model.state_dict()

    generator = torch.Generator().manual_seed(1)
    data = [
        {"index": torch.randint(10, (4,), generator=generator), "factor": torch.tensor(1.0)}
        for _ in range(8)
    ]
    data[5]["factor"] = torch.tensor(float("nan"))
    guard, found = run(data, policy)
    assert [i.event.step for i in guard.incidents] == [5]
    left_out = set(guard.ledger.steps())
    assert left_out == ({3, 4, 5} if policy == "rollback" else {5})
    _, wanted = run([b for i, b in enumerate(data) if i not in left_out], "raise")
    assert all(torch.equal(found[k], wanted[k]) for k in wanted)
    assert int(found["count"]) == 8 - len(left_out)


def test_a_rolled_back_run_does_not_repeat_the_step_that_broke_it():
    """Going back without leaving the batches out would meet the same fault for ever."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    data = [torch.full((2, 1), float("nan") if i == 4 else 1.0) for i in range(8)]
    with Guard(model, optimizer, policy="rollback", settings=FEW) as guard:
        for x in guard(data):
            if not guard.replaying:
                seen.append(bool(x.isnan().any()))
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
    assert seen.count(True) == 1 and len(seen) == len(data)
