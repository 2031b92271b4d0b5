"""A two-tower recommender with cosine scores. A user's vector is the sum of the embeddings of what he
clicked; a new user has clicked nothing, and the zero vector is divided by its norm."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class TwoTower(nn.Module):
    def __init__(self, num_items: int = 50, dim: int = 8) -> None:
        super().__init__()
        self.items = nn.Embedding(num_items + 1, dim, padding_idx=0)

    def unit(self, v):
        return v / v.norm(dim=-1, keepdim=True)  # <- born here

    def forward(self, history, candidate):
        user = self.unit(self.items(history).sum(dim=1))
        item = F.normalize(self.items(candidate), dim=-1)
        return 5 * user @ item.T


class TwoTowerSafe(TwoTower):
    def unit(self, v):
        return F.normalize(v, dim=-1)


def loss_fn(model, batch):
    scores = model(batch["history"], batch["clicked"])
    return F.cross_entropy(scores, torch.arange(len(scores)))


def _case(seed: int, towers: type[TwoTower]) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(12):
        history = torch.randint(1, 51, (6, 5))
        history[:, 3:] *= torch.randint(0, 2, (6, 2))
        if i == 7:
            history[2] = 0
        batches.append({"history": history, "clicked": torch.randint(1, 51, (6,))})
    model = towers()
    return Case(model, torch.optim.Adam(model.parameters(), lr=1e-2), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, TwoTower)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, TwoTowerSafe)


TRUTH = Truth(
    step=7,
    phase="forward",
    op="aten.div",
    module="",
    line="<marker>",
    cause="zero_denominator",
    split="held_out",
)
