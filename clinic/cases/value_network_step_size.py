"""Temporal difference learning of a value function whose features are raw board counts.

The step size is that of the tabular textbook example, 0.1. With a linear value over features of size ten,
each update changes the value by many times the error that it should correct.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class ValueNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 16)
        self.value = nn.Linear(16, 1, bias=False)

    def forward(self, board):
        features = nn.functional.leaky_relu(self.hidden(board))
        return self.value(features).squeeze(-1)  # <- born here


def loss_fn(model, batch):
    board, reward, following = batch
    with torch.no_grad():
        target = reward + 0.9 * model(following)
    error = target - model(board)
    return 0.5 * torch.einsum("b,b->", error, error) / len(error)


def games(num_batches: int) -> list[tuple[torch.Tensor, ...]]:
    batches = []
    for _ in range(num_batches):
        board = 10 * torch.rand(8, 6)
        following = (board + torch.randn(8, 6)).clamp(min=0)
        batches.append((board, board[:, 0] - board[:, 1], following))
    return batches


def _build(seed: int, step_size: float) -> Case:
    torch.manual_seed(seed)
    model = ValueNetwork()
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=step_size),
        loader=games(25),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, step_size=0.1)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, step_size=1e-4)


TRUTH = Truth(
    step=7,
    phase="forward",
    op="aten.mm",
    module="value",
    line="<marker>",
    cause="lr_divergence",
    split="held_out",
)
