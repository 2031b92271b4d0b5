"""A mixture-of-experts transformer layer that combines its experts' outputs in a preallocated tensor.

Each expert takes at most a fixed number of tokens. Tokens beyond that are dropped, and nothing writes
their rows of `torch.empty_like`. As long as the router is balanced, no token is dropped.
"""

import torch
from torch import nn

from clinic.form import Case, Truth

CAPACITY = 9


class ExpertLayer(nn.Module):
    def __init__(self, width: int, num_experts: int, allocate) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(num_experts))
        self.allocate = allocate

    def forward(self, tokens, choice):
        combined = self.allocate(tokens)  # <- born here
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().squeeze(1)[:CAPACITY]
            combined[rows] = torch.relu(expert(tokens[rows]))
        return combined


class RoutedClassifier(nn.Module):
    def __init__(self, allocate) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 12)
        self.layer = ExpertLayer(12, 3, allocate)
        self.out = nn.Linear(12, 2)

    def forward(self, x, choice):
        tokens = self.embed(x)
        return self.out(tokens + self.layer(tokens, choice))


def loss_fn(model, batch):
    x, choice, label = batch
    return nn.functional.cross_entropy(model(x, choice), label)


def traffic(num_batches: int) -> list[tuple[torch.Tensor, ...]]:
    batches = []
    for index in range(num_batches):
        x = torch.randn(18, 5)
        choice = torch.arange(18) % 3
        if index == 6:
            choice[:12] = 1
        batches.append((x, choice, (x[:, 0] > 0).long()))
    return batches


def _build(seed: int, allocate) -> Case:
    torch.manual_seed(seed)
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    model = RoutedClassifier(allocate)
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loader=traffic(12),
        loss_fn=loss_fn,
        cleanup=lambda: torch.use_deterministic_algorithms(was_deterministic),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, torch.empty_like)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, torch.zeros_like)


TRUTH = Truth(
    step=6,
    phase="forward",
    op="aten.empty_like",
    module="layer",
    line="<marker>",
    cause="uninitialized_memory",
    split="dev",
)
