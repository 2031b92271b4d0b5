"""A convolutional VAE with an unbounded log-variance head. A batch of images that were never scaled
to [0, 1] drives the head past 88, where the exponential in the KL term exceeds float32."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class ConvVAE(nn.Module):
    def __init__(self, logvar_limit: float | None) -> None:
        super().__init__()
        self.logvar_limit = logvar_limit
        self.encoder = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten())
        self.mu = nn.Linear(36, 3)
        self.logvar = nn.Linear(36, 3)
        self.decoder = nn.Linear(3, 64)

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        if self.logvar_limit is not None:
            logvar = torch.tanh(logvar / self.logvar_limit) * self.logvar_limit
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar.clamp(max=10))
        return torch.sigmoid(self.decoder(z)).view_as(x), mu, logvar


def elbo_loss(model, batch):
    recon, mu, logvar = model(batch)
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1)  # <- born here
    return F.mse_loss(recon, batch.clamp(0, 1)) + 1e-4 * kl.mean()


def _case(seed: int, logvar_limit: float | None) -> Case:
    torch.manual_seed(seed)
    batches = [torch.rand(6, 1, 8, 8) for _ in range(12)]
    batches[8] = torch.randint(0, 256, (6, 1, 8, 8)).float() * 20  # 12-bit raw frames
    model = ConvVAE(logvar_limit)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(model, optimizer, batches, elbo_loss, clip_norm=1.0)


def build(seed: int = 0) -> Case:
    return _case(seed, logvar_limit=None)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, logvar_limit=8.0)


TRUTH = Truth(
    step=8,
    phase="loss",
    op="aten.exp",
    module=None,
    line="<marker>",
    cause="exp_overflow",
    split="dev",
)
