"""A pointer network: visited cities are `masked_fill`ed with minus infinity, one more at each step."""

import torch
from torch import nn

from clinic.form import Case


class Pointer(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.city = nn.Linear(2, width)
        self.cell = nn.GRUCell(width, width)

    def forward(self, cities, tour):
        keys = torch.tanh(self.city(cities))
        state = keys.mean(1)
        visited = torch.zeros(cities.shape[:2], dtype=torch.bool)
        total = cities.new_zeros(len(cities))
        rows = torch.arange(len(cities))
        for choice in tour.unbind(1):
            scores = torch.einsum("bnw,bw->bn", keys, state).masked_fill(visited, -torch.inf)
            total = total - torch.log_softmax(scores, dim=1)[rows, choice]
            visited = visited.index_put((rows, choice), torch.tensor(True))
            state = self.cell(keys[rows, choice], state)
        return total / tour.shape[1]


def loss_fn(model, batch):
    return model(*batch).mean()


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    cities = torch.rand(14, 6, 5, 2)
    tours = cities.sum(-1).argsort(dim=-1)
    model = Pointer()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        loader=list(zip(cities, tours)),
        loss_fn=loss_fn,
        clip_norm=1.0,
    )
