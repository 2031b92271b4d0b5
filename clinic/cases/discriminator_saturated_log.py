"""A GAN whose discriminator ends in a sigmoid, with the textbook loss log D(x) + log(1 - D(G(z))).
When it meets generated samples that it takes for real with full confidence, D is exactly one."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 8, 5, stride=2), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(8 * 14, 1)
        )

    def forward(self, wave):
        return self.features(wave).squeeze(1)


def adversarial_value(real_score, fake_score):
    d_real, d_fake = torch.sigmoid(real_score), torch.sigmoid(fake_score)
    return -torch.log(d_real).mean() - (1 - d_fake).log_().mean()  # <- born here


def adversarial_value_logits(real_score, fake_score):
    return -F.logsigmoid(real_score).mean() - F.logsigmoid(-fake_score).mean()


def _case(seed: int, value) -> Case:
    torch.manual_seed(seed)
    time = torch.linspace(0, 6.28, 32)
    batches = []
    for i in range(20):
        phase = torch.rand(8, 1)
        real = torch.sin(3 * time + phase).unsqueeze(1)
        fake = torch.randn(8, 1, 32)
        if i >= 14:  # the generator has learned to copy, and to be loud
            fake = 12 * torch.sin(3 * time + phase.flip(0)).unsqueeze(1)
        batches.append((real, fake))

    def loss_fn(model, batch):
        real, fake = batch
        return value(model(real), model(fake))

    model = Discriminator()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    return Case(model, optimizer, batches, loss_fn, clip_norm=5.0)


def build(seed: int = 0) -> Case:
    return _case(seed, adversarial_value)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, adversarial_value_logits)


TRUTH = Truth(
    step=14,
    phase="loss",
    op="aten.log_",
    module=None,
    line="<marker>",
    cause="log_of_zero",
    split="held_out",
)
