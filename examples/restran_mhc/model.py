"""ResTran with manifold-constrained hyper-connections (mHC): frames of a plate in, characters out.

A residual network looks at every frame, attention over the frames fuses them, a transformer reads the
columns, and CTC aligns them with the text. Each residual block is wrapped in mHC: the one residual
stream becomes n streams, and three small learned routings say what the block reads from them, what
it writes back, and how they mix. The mixing matrix is made doubly stochastic by Sinkhorn-Knopp.
"""

from __future__ import annotations

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-20) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def sinkhorn_knopp(h_tilde: torch.Tensor, tau: float, iterations: int = 20) -> torch.Tensor:
    """Rows and columns of exp(h_tilde / tau) are divided by their sums in turn, until both are 1."""
    m = torch.exp(h_tilde / tau)
    for _ in range(iterations):
        m = m / m.sum(dim=-1, keepdim=True)
        m = m / m.sum(dim=-2, keepdim=True)
    return m


class BasicBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))


class HyperConnection(nn.Module):
    """A block, read from and written to n streams by routings that depend on the input."""

    def __init__(self, block: nn.Module, channels: int, n: int, tau: float) -> None:
        super().__init__()
        self.block, self.n, self.tau = block, n, tau
        self.norm = RMSNorm(n * channels)
        self.phi_pre = nn.Linear(n * channels, n, bias=False)
        self.phi_post = nn.Linear(n * channels, n, bias=False)
        self.phi_res = nn.Linear(n * channels, n * n, bias=False)
        self.alpha_pre = nn.Parameter(torch.tensor(0.01))
        self.alpha_post = nn.Parameter(torch.tensor(0.01))
        self.alpha_res = nn.Parameter(torch.tensor(0.01))
        self.b_pre = nn.Parameter(torch.zeros(n))
        self.b_post = nn.Parameter(torch.zeros(n))
        self.b_res = nn.Parameter(torch.zeros(n, n))

    def project(self, h_tilde: torch.Tensor) -> torch.Tensor:
        """Onto the manifold of doubly stochastic matrices."""
        return sinkhorn_knopp(h_tilde, self.tau)

    def forward(self, streams: torch.Tensor) -> torch.Tensor:
        pooled = self.norm(streams.mean(dim=(-2, -1)).flatten(1))  # [B, n*C]
        h_pre = torch.sigmoid(self.alpha_pre * self.phi_pre(pooled) + self.b_pre)
        h_post = 2 * torch.sigmoid(self.alpha_post * self.phi_post(pooled) + self.b_post)
        routing = self.phi_res(pooled).unflatten(-1, (self.n, self.n))
        h_res = self.project(self.alpha_res * routing + self.b_res)
        h_in = torch.einsum("bn,bnchw->bchw", h_pre, streams)
        h_out = torch.einsum("bn,bchw->bnchw", h_post, self.block(h_in))
        return torch.einsum("bmn,bnchw->bmchw", h_res, streams) + h_out


class ResTranMHC(nn.Module):
    def __init__(
        self,
        classes: int = 37,
        channels: int = 16,
        blocks: int = 3,
        n: int = 4,
        tau: float = 0.1,
        hyper: type = HyperConnection,
    ) -> None:
        super().__init__()
        self.n = n
        self.stem = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )
        self.blocks = nn.ModuleList(
            hyper(BasicBlock(channels), channels, n, tau) for _ in range(blocks)
        )
        dim = 4 * channels
        self.score = nn.Linear(dim, 1)
        self.position = nn.Parameter(torch.randn(26, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """[B, F, 16, 104] in, log-probabilities [B, 26, classes] out."""
        batch, count = frames.shape[:2]
        x = self.stem(frames.flatten(0, 1).unsqueeze(1))  # [B*F, C, 4, 26]
        streams = x.unsqueeze(1).expand(-1, self.n, -1, -1, -1)
        for block in self.blocks:
            streams = block(streams)
        maps = streams.mean(dim=1)
        columns = maps.flatten(1, 2).transpose(1, 2).unflatten(0, (batch, count))  # [B, F, 26, D]
        weights = torch.softmax(self.score(columns), dim=1)
        fused = (weights * columns).sum(dim=1) + self.position
        return self.head(self.encoder(fused)).log_softmax(dim=-1)
