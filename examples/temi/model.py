"""Clustering heads on fixed embeddings, and the teacher that follows them."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Head(nn.Module):
    """An MLP whose logits are the cosines between its output and one prototype a cluster."""

    def __init__(self, dim: int, hidden: int, bottleneck: int, clusters: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, bottleneck))
        self.prototypes = nn.Parameter(torch.randn(clusters, bottleneck))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(self.mlp(x), dim=-1), F.normalize(self.prototypes, dim=-1))


class MultiHead(nn.Module):
    """Several heads side by side; they share the embeddings and nothing else."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        sizes = (config["embedding_dim"], config["hidden_dim"], config["bottleneck_dim"])
        heads = [Head(*sizes, config["num_clusters"]) for _ in range(config["num_heads"])]
        self.heads = nn.ModuleList(heads)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([head(x) for head in self.heads])


class StudentTeacher(nn.Module):
    """The student is trained; the teacher is its running average."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.student = MultiHead(config)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.momentum = config["teacher_momentum"]

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            teacher = self.teacher(a), self.teacher(b)
        return self.student(a), self.student(b), *teacher

    @torch.no_grad()
    def update_teacher(self) -> None:
        for old, new in zip(self.teacher.parameters(), self.student.parameters()):
            old.lerp_(new, 1 - self.momentum)
