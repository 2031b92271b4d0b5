"""A recommender that predicts purchase counts with a Poisson likelihood. The rate passes a ReLU so
that it is not negative; for a cold user it is exactly zero, and its logarithm is minus infinity."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class PoissonFactorization(nn.Module):
    def __init__(self, num_users: int = 30, num_items: int = 20, dim: int = 6) -> None:
        super().__init__()
        self.user = nn.Embedding(num_users, dim)
        self.item = nn.Embedding(num_items, dim)
        nn.init.uniform_(self.user.weight, 0.1, 0.6)
        nn.init.uniform_(self.item.weight, 0.1, 0.6)
        with torch.no_grad():
            self.user.weight[27:].neg_()

    def rate(self, score):
        return F.relu(score)

    def forward(self, user, item, count):
        rate = self.rate((self.user(user) * self.item(item)).sum(dim=-1))
        return (rate - count * rate.log()).mean()  # <- born here


class PoissonSoftplus(PoissonFactorization):
    def rate(self, score):
        return F.softplus(score) + 1e-6


def _case(seed: int, kind: type[PoissonFactorization]) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(10):
        user = torch.randint(0, 27, (12,))
        if i == 4:
            user[8] = 28
        count = torch.randint(0, 4, (12,)).float()
        batches.append((user, torch.randint(0, 20, (12,)), count))
    model = kind()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    return Case(model, optimizer, batches, lambda model, batch: model(*batch))


def build(seed: int = 0) -> Case:
    return _case(seed, PoissonFactorization)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, PoissonSoftplus)


TRUTH = Truth(
    step=4,
    phase="forward",
    op="aten.log",
    module="",
    line="<marker>",
    cause="log_of_zero",
    split="held_out",
)
