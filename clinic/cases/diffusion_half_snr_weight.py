"""A diffusion denoiser in half precision whose loss is computed in float32 and weighted by
1 / sigma^2. At the smallest noise level the weight is so large that the gradient, finite in float32,
has no float16 value when it is cast back into the network."""

import torch
from torch import nn

from clinic.form import Case, Truth


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(1, 12)
        self.inp = nn.Linear(4, 12)
        self.out = nn.Linear(12, 4)

    def forward(self, x, sigma):
        h = torch.nn.functional.silu(self.inp(x) + self.time(sigma))
        return self.out(h)


def denoising_loss(max_weight: float):
    def loss_fn(model, batch):
        clean, noise, sigma = batch
        noisy = clean + sigma * noise
        pred = model(noisy.half(), sigma.log().half()).float()  # <- born here
        weight = (1 / sigma**2).clamp(max=max_weight)
        return (weight * (pred - clean) ** 2).mean()

    return loss_fn


def _case(seed: int, max_weight: float) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(10):
        sigma = torch.rand(6, 1) + 0.3
        if i == 6:
            sigma[2] = 2e-4
        batches.append((torch.randn(6, 4), torch.randn(6, 4), sigma))
    model = Denoiser().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return Case(model, optimizer, batches, denoising_loss(max_weight), clip_norm=1.0)


def build(seed: int = 0) -> Case:
    return _case(seed, max_weight=1e12)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, max_weight=5.0)


TRUTH = Truth(
    step=6,
    phase="backward",
    op="ToCopyBackward0",
    module=None,
    line="<marker>",
    cause="low_precision_overflow",
    split="held_out",
)
