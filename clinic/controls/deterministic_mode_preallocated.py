"""Deterministic algorithms on: `torch.empty` gives NaN, and the model writes every element before use."""

import torch
from torch import nn

from clinic.form import Case


class Unrolled(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, width)
        self.out = nn.Linear(width, 1)

    def forward(self, series):
        batch, length, _ = series.shape
        states = series.new_empty(batch, length, self.cell.hidden_size)
        state = series.new_zeros(batch, self.cell.hidden_size)
        for t in range(length):
            state = self.cell(series[:, t], state)
            states[:, t] = state
        return self.out(states.mean(1)).squeeze(1)


def loss_fn(model, series):
    return nn.functional.mse_loss(model(series), series.mean(dim=(1, 2)))


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    model = Unrolled()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loader=list(torch.randn(10, 5, 6, 3)),
        loss_fn=loss_fn,
        cleanup=lambda: torch.use_deterministic_algorithms(was_deterministic),
    )
