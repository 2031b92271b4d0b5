"""A model with integer, boolean, empty and 0-dim buffers, and a batch that is a nested structure."""

from collections import namedtuple

import torch
from torch import nn

from clinic.form import Case

Sample = namedtuple("Sample", "tokens meta")


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(12, dtype=torch.int64))
        self.register_buffer("is_stop_word", torch.arange(12) < 2)
        self.register_buffer("num_calls", torch.tensor(0))
        self.register_buffer("spare", torch.empty(0))
        self.embed = nn.Embedding(12, 6)
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 2)

    def forward(self, tokens):
        self.num_calls += 1
        self.seen += torch.bincount(tokens.flatten(), minlength=12)
        keep = (~self.is_stop_word[tokens]).unsqueeze(-1)
        pooled = (self.embed(tokens) * keep).sum(1) / keep.sum(1).clamp(min=1)
        return {"logits": self.out(self.norm(pooled)), "aux": None}


def loss_fn(model, batch):
    out = model(batch.tokens)
    return nn.functional.cross_entropy(out["logits"], batch.meta["label"])


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    batches = []
    for index in range(12):
        tokens = torch.randint(0, 12, (6, 4), dtype=torch.int32).long()
        label = (tokens.sum(1) > 22).long()
        batches.append(Sample(tokens, {"label": label, "ids": [index], "source": "log"}))
    model = Counter()
    return Case(
        model=model,
        optimizer=torch.optim.NAdam(model.parameters(), lr=1e-2),
        loader=batches,
        loss_fn=loss_fn,
    )
