"""A one-layer transformer language model trained with a learning rate of 1e6, written for 1e-6.

Adam normalizes the step, so after one update every weight is about a million. The forward still fits
into float32, and so does the loss; a squared gradient no longer fits into the second moment. From then on
the update is zero and the run goes on with a frozen, useless model.
"""

import torch
from torch import nn

from clinic.form import Case, Truth

VOCABULARY = 12


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        query, key, value = self.query_key_value(self.norm(x)).chunk(3, dim=-1)
        x = x + nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.feed(x)


class LanguageModel(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.block = Block(width)
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.out(self.block(self.tokens(tokens)))


def loss_fn(model, tokens):
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _build(seed: int, lr: float) -> Case:
    torch.manual_seed(seed)
    start = torch.randint(0, VOCABULARY, (12, 4, 1))
    corpus = (start + 5 * torch.arange(9)) % VOCABULARY
    model = LanguageModel()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=lr),
        loader=list(corpus),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, lr=1e6)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, lr=1e-6)


TRUTH = Truth(
    step=1,
    phase="optimizer",
    op="aten.addcmul_",
    module=None,
    line=None,
    cause="lr_divergence",
    split="held_out",
)
