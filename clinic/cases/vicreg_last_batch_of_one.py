"""Self-supervised training with a variance term on each feature's standard deviation over the batch.
The data set's size is one more than a multiple of the batch size and the loader keeps the last batch:
the sample deviation of one row is 0 / 0."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class Projector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 6))

    def forward(self, x):
        return self.net(x)


def variance_term(z):
    return torch.relu(1 - z.std(dim=0)).mean()  # <- born here


def loss_fn(model, batch):
    (x,) = batch
    z_a, z_b = (model(x + 0.1 * torch.randn_like(x)) for _ in range(2))
    invariance = nn.functional.mse_loss(z_a, z_b)
    return invariance + variance_term(z_a) + variance_term(z_b)


def _case(seed: int, drop_last: bool) -> Case:
    torch.manual_seed(seed)
    loader = DataLoader(
        TensorDataset(torch.randn(97, 10)),
        batch_size=12,
        shuffle=True,
        drop_last=drop_last,
        generator=torch.Generator().manual_seed(seed),
    )
    model = Projector()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(model, optimizer, loader, loss_fn, epochs=2)


def build(seed: int = 0) -> Case:
    return _case(seed, drop_last=False)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, drop_last=True)


TRUTH = Truth(
    step=8,
    phase="loss",
    op="aten.std",
    module=None,
    line="<marker>",
    cause="empty_reduction",
    split="dev",
)
