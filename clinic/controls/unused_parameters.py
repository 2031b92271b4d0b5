"""A network with auxiliary heads that most batches do not use: their gradients are None."""

import torch
from torch import nn

from clinic.form import Case


class MultiHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 16)
        self.heads = nn.ModuleDict({name: nn.Linear(16, 3) for name in ("day", "night", "never")})
        self.legacy = nn.Parameter(torch.randn(4))
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x, name):
        return self.heads[name](torch.relu(self.trunk(self.frozen(x))))


def loss_fn(model, batch):
    x, y, name = batch
    return nn.functional.cross_entropy(model(x, name), y)


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    batches = []
    for index in range(16):
        x = torch.randn(8, 6)
        batches.append((x, x[:, :3].argmax(1), "night" if index % 5 == 4 else "day"))
    model = MultiHead()
    return Case(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=5e-3),
        loader=batches,
        loss_fn=loss_fn,
        clip_norm=1.0,
    )
