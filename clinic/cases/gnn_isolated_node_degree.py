"""A graph network with mean aggregation. The sum of the neighbors' features is divided by the degree;
a graph with an isolated node has a degree of zero there."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


def mean_neighbors(x, adj):
    degree = adj.sum(dim=1, keepdim=True)
    return (adj @ x) / degree  # <- born here


def mean_neighbors_guarded(x, adj):
    degree = adj.sum(dim=1, keepdim=True).clamp(min=1)
    return (adj @ x) / degree


class MeanConv(nn.Module):
    def __init__(self, d_in: int, d_out: int, aggregate) -> None:
        super().__init__()
        self.own = nn.Linear(d_in, d_out)
        self.neighbor = nn.Linear(d_in, d_out, bias=False)
        self.aggregate = aggregate

    def forward(self, x, adj):
        return self.own(x) + self.neighbor(self.aggregate(x, adj))


class GraphRegressor(nn.Module):
    def __init__(self, aggregate) -> None:
        super().__init__()
        self.convs = nn.ModuleList([MeanConv(4, 12, aggregate), MeanConv(12, 12, aggregate)])
        self.readout = nn.Linear(12, 1)

    def forward(self, x, adj):
        for conv in self.convs:
            x = F.relu(conv(x, adj))
        return self.readout(x.mean(dim=0))


def loss_fn(model, graph):
    x, adj, energy = graph
    return F.mse_loss(model(x, adj), energy)


def _case(seed: int, aggregate) -> Case:
    torch.manual_seed(seed)
    graphs = []
    for i in range(16):
        upper = torch.triu((torch.rand(9, 9) < 0.4).float(), diagonal=1)
        upper[torch.arange(8), torch.arange(1, 9)] = 1.0  # a path keeps every node connected
        adj = upper + upper.T
        if i == 11:
            adj[4, :] = 0
            adj[:, 4] = 0
        graphs.append((torch.randn(9, 4), adj, torch.randn(1)))
    model = GraphRegressor(aggregate)
    return Case(model, torch.optim.Adam(model.parameters(), lr=5e-3), graphs, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, mean_neighbors)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, mean_neighbors_guarded)


TRUTH = Truth(
    step=11,
    phase="forward",
    op="aten.div",
    module="convs.0",
    line="<marker>",
    cause="zero_denominator",
    split="dev",
)
