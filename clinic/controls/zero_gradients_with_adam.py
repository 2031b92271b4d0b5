"""Dead units and an empty class: many gradients are exactly zero, and Adam's epsilon takes care of it."""

import torch
from torch import nn

from clinic.form import Case


class HalfDead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 8, padding_idx=0)
        self.hidden = nn.Linear(8, 16)
        self.out = nn.Linear(16, 4)
        with torch.no_grad():
            self.hidden.bias[:8] = -50.0

    def forward(self, words):
        return self.out(torch.relu(self.hidden(self.words(words).mean(1))))


def loss_fn(model, batch):
    words, label = batch
    return nn.functional.cross_entropy(model(words), label)


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    words = torch.randint(0, 30, (16, 8, 5))
    model = HalfDead()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loader=[(w, w.sum(1) % 3) for w in words],
        loss_fn=loss_fn,
    )
