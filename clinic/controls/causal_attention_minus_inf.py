"""A causal transformer: half of every attention row is minus infinity before the softmax, by design."""

import math

import torch
from torch import nn

from clinic.form import Case


class CausalSelfAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x):
        query, key, value = self.query_key_value(x).chunk(3, dim=-1)
        length = x.shape[1]
        mask = torch.triu(torch.full((length, length), -torch.inf), diagonal=1)
        scores = query @ key.transpose(1, 2) / math.sqrt(x.shape[2]) + mask
        return self.project(scores.softmax(dim=-1) @ value)


class TinyGPT(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, width)
        self.norm = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width)
        self.out = nn.Linear(width, 11)

    def forward(self, tokens):
        x = self.tokens(tokens)
        return self.out(x + self.attention(self.norm(x)))


def loss_fn(model, tokens):
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    start = torch.randint(0, 11, (15, 4, 1))
    model = TinyGPT()
    return Case(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=5e-3),
        loader=list((start + 4 * torch.arange(9)) % 11),
        loss_fn=loss_fn,
    )
