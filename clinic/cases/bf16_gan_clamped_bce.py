"""A GAN in bfloat16 whose discriminator probabilities are clamped to [1e-4, 1 - 1e-4] before the
logarithm. In bfloat16 the upper bound rounds to one, so that a confident discriminator gives log(1 - 1) as soon as
the usual trick of now and then flipping the labels is applied to it."""

import torch
from torch import nn

from clinic.form import Case, Truth

EPS = 1e-4


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.discriminator = nn.Sequential(
            nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid()
        )

    def forward(self, noise, real):
        return self.discriminator(self.generator(noise)), self.discriminator(real)


def discriminator_bce(fake, real):
    fake = fake.clamp(EPS, 1 - EPS)
    real = real.clamp(EPS, 1 - EPS)
    return -(torch.log(real) + torch.log(1 - fake)).mean()  # <- born here


def discriminator_bce_fp32(fake, real):
    fake = fake.float().clamp(EPS, 1 - EPS)
    real = real.float().clamp(EPS, 1 - EPS)
    return -(torch.log(real) + torch.log(1 - fake)).mean()


def _case(seed: int, bce) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(24):
        noise, real = torch.randn(8, 4).bfloat16(), (torch.randn(8, 2) - 6).bfloat16()
        batches.append((noise, real, i % 10 == 9))

    def loss_fn(model, batch):
        noise, real, is_flipped = batch
        fake, real = model(noise, real)
        return (bce(real, fake) if is_flipped else bce(fake, real)).float()

    model = Gan().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    return Case(model, optimizer, batches, loss_fn, clip_norm=1.0)


def build(seed: int = 0) -> Case:
    return _case(seed, discriminator_bce)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, discriminator_bce_fp32)


TRUTH = Truth(
    step=9,
    phase="loss",
    op="aten.log",
    module=None,
    line="<marker>",
    cause="low_precision_underflow",
    split="dev",
)
