"""A two-layer graph convolutional network that precomputes its normalized adjacency matrix.

The author left the self-loops out, so a paper that neither cites nor is cited has degree zero, its
inverse square root is infinite, and infinity times its empty row is NaN in the buffer, before any
training.
"""

import torch
from torch import nn

from clinic.form import Case, Truth

NUM_PAPERS = 24


def normalized_adjacency(edges: torch.Tensor, self_loops: bool) -> torch.Tensor:
    adjacency = torch.zeros(NUM_PAPERS, NUM_PAPERS)
    adjacency[edges[0], edges[1]] = 1.0
    adjacency[edges[1], edges[0]] = 1.0
    if self_loops:
        adjacency.fill_diagonal_(1.0)
    inverse_root = adjacency.sum(1).pow(-0.5)
    return inverse_root[:, None] * adjacency * inverse_root[None, :]


class GraphConv(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Linear(inputs, outputs)

    def forward(self, nodes, adjacency):
        return adjacency @ self.weight(nodes)


class CitationNet(nn.Module):
    def __init__(self, edges: torch.Tensor, self_loops: bool) -> None:
        super().__init__()
        self.register_buffer("adjacency", normalized_adjacency(edges, self_loops))
        self.first = GraphConv(8, 16)
        self.second = GraphConv(16, 3)

    def forward(self, papers):
        hidden = torch.relu(self.first(papers, self.adjacency))
        return self.second(hidden, self.adjacency)


def loss_fn(model, batch):
    papers, field = batch
    return nn.functional.cross_entropy(model(papers), field)


def _build(seed: int, self_loops: bool) -> Case:
    torch.manual_seed(seed)
    edges = torch.randint(0, NUM_PAPERS - 1, (2, 40))
    papers = torch.randn(NUM_PAPERS, 8)
    field = papers[:, :3].argmax(1)
    model = CitationNet(edges, self_loops)
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4),
        loader=[(papers, field)],
        loss_fn=loss_fn,
        epochs=12,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, self_loops=False)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, self_loops=True)


TRUTH = Truth(
    step=0,
    phase="parameter",
    op=None,
    module=None,
    line=None,
    cause="bad_initialization",
    split="held_out",
)
