"""Poincare embeddings of a taxonomy, trained with a plain optimizer and no retraction. A step moves a
point out of the unit ball, the argument of the inverse hyperbolic cosine falls below one."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


def poincare_distance(u, v):
    gap = (u - v).pow(2).sum(dim=-1)
    shrink = (1 - u.pow(2).sum(dim=-1)) * (1 - v.pow(2).sum(dim=-1))
    return torch.acosh(1 + 2 * gap / shrink + 1e-6)  # <- born here


def to_ball(x, max_norm: float = 0.95):
    norm = x.pow(2).sum(dim=-1, keepdim=True).add(1e-9).sqrt()
    return x * (max_norm / norm).clamp(max=1.0)


class Taxonomy(nn.Module):
    def __init__(self, num_nodes: int = 24, dim: int = 3) -> None:
        super().__init__()
        self.points = nn.Embedding(num_nodes, dim)
        nn.init.uniform_(self.points.weight, -0.3, 0.3)

    def lookup(self, index):
        return self.points(index)

    def forward(self, child, candidates):
        u = self.lookup(child).unsqueeze(1)
        return -poincare_distance(u, self.lookup(candidates))


class ProjectedTaxonomy(Taxonomy):
    def lookup(self, index):
        return to_ball(self.points(index))


def loss_fn(model, batch):
    child, candidates = batch
    parent = torch.zeros(len(child), dtype=torch.long)
    return F.cross_entropy(model(child, candidates), parent)


def _case(seed: int, kind: type[Taxonomy]) -> Case:
    torch.manual_seed(seed)
    batches = []
    for _ in range(30):
        nodes = torch.stack([torch.randperm(24)[:6] for _ in range(8)])
        batches.append((nodes[:, 0], nodes[:, 1:]))
    model = kind()
    return Case(model, torch.optim.SGD(model.parameters(), lr=1.0), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, Taxonomy)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, ProjectedTaxonomy)


TRUTH = Truth(
    step=9,
    phase="forward",
    op="aten.acosh",
    module="",
    line="<marker>",
    cause="domain_error",
    split="held_out",
)
