"""A small diffusion model whose warmup is as long as its whole schedule.

Both lengths come from a configuration in which only one of them was shortened for a test run. The
cosine part divides the steps since the warmup by the steps of decay, zero by zero, and the loop goes on
for longer than the schedule was planned.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class WarmupCosine:
    def __init__(self, warmup_steps: int, total_steps: int) -> None:
        self.warmup_steps = torch.tensor(float(warmup_steps))
        self.total_steps = torch.tensor(float(total_steps))

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return float((step + 1) / self.warmup_steps)
        progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return float(0.5 * (1 + torch.cos(torch.pi * progress)))


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(2, 16)
        self.noisy = nn.Linear(2, 16)
        self.noise = nn.Sequential(nn.SiLU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 2))

    def forward(self, noisy, t):
        time = torch.stack([torch.sin(6 * t), torch.cos(6 * t)], dim=1)
        return self.noise(self.noisy(noisy) + self.time(time))


def loss_fn(model, clean):
    t = torch.rand(len(clean))
    noise = torch.randn_like(clean)
    keep = torch.cos(0.5 * torch.pi * t).unsqueeze(1)
    noisy = keep * clean + (1 - keep**2).sqrt() * noise
    return nn.functional.mse_loss(model(noisy, t), noise)


def _build(seed: int, total_steps: int) -> Case:
    torch.manual_seed(seed)
    angle = 2 * torch.pi * torch.rand(16, 12)
    moons = torch.stack([torch.cos(angle), torch.sin(angle)], dim=-1)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = WarmupCosine(warmup_steps=10, total_steps=total_steps)
    return Case(
        model=model,
        optimizer=optimizer,
        loader=list(moons),
        loss_fn=loss_fn,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, schedule),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, total_steps=10)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, total_steps=100)


TRUTH = Truth(
    step=10,
    phase="optimizer",
    op="aten.mul_",
    module=None,
    line=None,
    cause="bad_schedule",
    split="dev",
)
