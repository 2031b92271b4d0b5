"""An advertising model that fits expected clicks per impression. Slots without impressions divide by
zero; the author drops them by boolean indexing, but only after the division, and the backward of the
division is 0 / 0 there."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class SlotModel(nn.Module):
    def __init__(self, drops_first: bool) -> None:
        super().__init__()
        self.drops_first = drops_first
        self.slot = nn.Embedding(12, 4)
        self.clicks = nn.Sequential(nn.Linear(4 + 3, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, slot, context, shown):
        x = torch.cat([self.slot(slot), context], dim=1)
        clicks = self.clicks(x).squeeze(1)
        if self.drops_first:
            return clicks[shown > 0] / shown[shown > 0]
        rate = torch.div(clicks, shown)  # <- born here
        return rate[shown > 0]


def loss_fn(model, batch):
    slot, context, shown, rate = batch
    return nn.functional.mse_loss(model(slot, context, shown), rate[shown > 0])


def _case(seed: int, drops_first: bool) -> Case:
    torch.manual_seed(seed)
    shown = torch.randint(1, 30, (108,)).float()
    shown[80] = 0.0
    data = TensorDataset(torch.randint(0, 12, (108,)), torch.randn(108, 3), shown, torch.rand(108))
    loader = DataLoader(data, batch_size=9, generator=torch.Generator().manual_seed(seed))
    model = SlotModel(drops_first)
    return Case(model, torch.optim.Adagrad(model.parameters(), lr=0.02), loader, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, drops_first=False)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, drops_first=True)


TRUTH = Truth(
    step=8,
    phase="backward",
    op="DivBackward0",
    module="",
    line="<marker>",
    cause="masked_branch_leak",
    split="dev",
)
