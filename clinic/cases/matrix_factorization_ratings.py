"""A matrix factorization recommender trained by SGD on ratings of 1 to 5.

User and item vectors are multiplied, so the step that is fine for one of them is far too long once both
have grown. With this learning rate the dot products grow doubly exponentially.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class Factorization(nn.Module):
    def __init__(self, num_users: int, num_items: int, rank: int = 8) -> None:
        super().__init__()
        self.user = nn.Embedding(num_users, rank)
        self.item = nn.Embedding(num_items, rank)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)
        self.mean = nn.Parameter(torch.tensor(3.0))

    def forward(self, user, item):
        return self.mean + torch.einsum("br,br->b", self.user(user), self.item(item))


def loss_fn(model, batch):
    user, item, rating = batch
    return nn.functional.mse_loss(model(user, item), rating, reduction="sum")  # <- born here


def _build(seed: int, lr: float) -> Case:
    torch.manual_seed(seed)
    user = torch.randint(0, 20, (600,))
    item = torch.randint(0, 15, (600,))
    rating = 1.0 + (user * 3 + item * 5) % 5
    model = Factorization(20, 15)
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr, weight_decay=1e-4),
        loader=DataLoader(
            TensorDataset(user, item, rating),
            batch_size=20,
            shuffle=True,
            generator=torch.Generator().manual_seed(seed),
        ),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, lr=0.15)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, lr=0.01)


TRUTH = Truth(
    step=6,
    phase="loss",
    op="aten.mse_loss",
    module=None,
    line="<marker>",
    cause="lr_divergence",
    split="dev",
)
