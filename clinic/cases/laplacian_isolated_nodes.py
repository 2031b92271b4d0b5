"""Spectral positional encodings from a Laplacian with learned edge weights. A graph with isolated
nodes has the eigenvalue zero several times over, and the backward of the eigenvectors divides by the
differences of eigenvalues."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class SpectralEncoding(nn.Module):
    def __init__(self, spread: float) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 1))
        self.spread = spread

    def forward(self, x, adj):
        pair = torch.stack([x[:, None] * x[None], (x[:, None] - x[None]).abs()], dim=-1)
        weight = F.softplus(self.edge(pair)).squeeze(-1) * adj
        laplacian = torch.diag(weight.sum(dim=1)) - weight
        laplacian = laplacian + self.spread * torch.diag(torch.arange(len(x), dtype=x.dtype))
        _, vectors = torch.linalg.eigh(laplacian)  # <- born here
        return vectors[:, :4].abs()


class SpectralNet(nn.Module):
    def __init__(self, spread: float) -> None:
        super().__init__()
        self.encode = SpectralEncoding(spread)
        self.head = nn.Linear(5, 2)

    def forward(self, x, adj):
        return self.head(torch.cat([x[:, None], self.encode(x, adj)], dim=1))


def loss_fn(model, graph):
    x, adj, label = graph
    return F.cross_entropy(model(x, adj), label)


def _case(seed: int, spread: float) -> Case:
    torch.manual_seed(seed)
    graphs = []
    for i in range(10):
        upper = torch.triu((torch.rand(7, 7) < 0.5).float(), diagonal=1)
        upper[torch.arange(6), torch.arange(1, 7)] = 1.0
        if i == 5:
            upper[:, 4:] = 0
            upper[4:] = 0
        graphs.append((torch.randn(7), upper + upper.T, torch.randint(0, 2, (7,))))
    model = SpectralNet(spread)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(model, optimizer, graphs, loss_fn, clip_norm=1.0)


def build(seed: int = 0) -> Case:
    return _case(seed, spread=0.0)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, spread=1e-2)


TRUTH = Truth(
    step=5,
    phase="backward",
    op="LinalgEighBackward0",
    module="encode",
    line="<marker>",
    cause="degenerate_linalg",
    split="dev",
)
