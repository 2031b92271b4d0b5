"""A graph attention layer whose softmax over neighbors is written out as exp(score) / sum(exp), with
no maximum subtracted. A node with large features has scores above 88."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class EdgeAttention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, dim, bias=False)
        self.score = nn.Linear(2 * dim, 1, bias=False)

    def normalize(self, score, dst, num_nodes: int):
        weight = torch.exp(score)  # <- born here
        total = torch.zeros(num_nodes).scatter_add(0, dst, weight)
        return weight / total[dst]

    def forward(self, x, src, dst):
        h = self.proj(x)
        score = F.leaky_relu(self.score(torch.cat([h[src], h[dst]], dim=1))).squeeze(1)
        alpha = self.normalize(score, dst, len(x))
        return torch.zeros_like(h).index_add(0, dst, alpha.unsqueeze(1) * h[src])


class EdgeAttentionShifted(EdgeAttention):
    def normalize(self, score, dst, num_nodes: int):
        top = torch.full((num_nodes,), -1e30).scatter_reduce(0, dst, score.detach(), "amax")
        return super().normalize(score - top[dst], dst, num_nodes)


class GAT(nn.Module):
    def __init__(self, layer: type[EdgeAttention]) -> None:
        super().__init__()
        self.inp = nn.Linear(5, 8)
        self.gat1 = layer(8)
        self.gat2 = layer(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x, src, dst):
        h = torch.tanh(self.gat1(self.inp(x), src, dst))
        return self.out(self.gat2(h, src, dst))


def loss_fn(model, graph):
    x, src, dst, label = graph
    return F.cross_entropy(model(x, src, dst), label)


def _case(seed: int, layer: type[EdgeAttention]) -> Case:
    torch.manual_seed(seed)
    graphs = []
    for i in range(12):
        x = torch.randn(10, 5)
        if i == 7:
            x[:5] *= 400  # hubs
        src = torch.cat([torch.arange(10), torch.randint(0, 10, (20,))])
        dst = torch.cat([torch.arange(10), torch.randint(0, 10, (20,))])
        graphs.append((x, src, dst, torch.randint(0, 3, (10,))))
    model = GAT(layer)
    return Case(model, torch.optim.Adam(model.parameters(), lr=2e-3), graphs, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, EdgeAttention)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, EdgeAttentionShifted)


TRUTH = Truth(
    step=7,
    phase="forward",
    op="aten.exp",
    module="gat1",
    line="<marker>",
    cause="exp_overflow",
    split="held_out",
)
