"""A VAE on gene expression counts with an unbounded log-variance head. A cell that was sequenced far
deeper than the others drives the head past 88, where the exponential in the KL term exceeds float32."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class ExpressionVAE(nn.Module):
    def __init__(self, logvar_limit: float | None) -> None:
        super().__init__()
        self.logvar_limit = logvar_limit
        self.encoder = nn.Sequential(nn.Linear(20, 16), nn.ReLU())
        self.mu = nn.Linear(16, 3)
        self.logvar = nn.Linear(16, 3)
        self.decoder = nn.Linear(3, 20)

    def forward(self, counts):
        h = self.encoder(counts)
        mu, logvar = self.mu(h), self.logvar(h)
        if self.logvar_limit is not None:
            logvar = torch.tanh(logvar / self.logvar_limit) * self.logvar_limit
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar.clamp(max=10))
        return F.log_softmax(self.decoder(z), dim=1), mu, logvar


def elbo_loss(model, counts):
    log_share, mu, logvar = model(counts)
    recon = -(counts * log_share).sum(dim=1) / counts.sum(dim=1)
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1)  # <- born here
    return recon.mean() + 1e-4 * kl.mean()


def _case(seed: int, logvar_limit: float | None) -> Case:
    torch.manual_seed(seed)
    rate = torch.rand(20) * 4 + 0.5
    depth = torch.ones(12, 6, 1)
    depth[8, :3] = 400.0
    batches = list(torch.poisson(rate * depth) + 0.01)
    model = ExpressionVAE(logvar_limit)
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
