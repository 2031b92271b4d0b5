"""Illegal moves get a logit of -inf: their log probability is -inf too, and they are never the target."""

import torch
from torch import nn

from clinic.form import Case


class MovePredictor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 9))

    def forward(self, board):
        is_taken = board != 0
        logits = self.layers(board)
        return torch.where(is_taken, -torch.inf, logits)


def loss_fn(model, batch):
    board, move = batch
    log_probability = torch.log_softmax(model(board), dim=1)
    return nn.functional.nll_loss(log_probability, move)


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    batches = []
    for _ in range(14):
        board = torch.randint(-1, 2, (10, 9)).float()
        board[torch.arange(10), torch.randint(0, 9, (10,))] = 0.0
        move = (board == 0).float().argmax(1)
        batches.append((board, move))
    model = MovePredictor()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        loader=batches,
        loss_fn=loss_fn,
    )
