"""A transformer whose table of position scales is built by a background thread.

The table for a new sequence length is published in the cache before the builder has filled it. The
first batch of that length divides by zeros; whoever comes second finds the table complete. The
emulation fills a table when the cache is asked the next time, so that the race is lost every time.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class ScaleCache:
    def __init__(self, publish_early: bool) -> None:
        self.publish_early = publish_early
        self.tables: dict[int, torch.Tensor] = {}
        self.unfinished: list[torch.Tensor] = []

    def finish(self) -> None:
        for table in self.unfinished:
            table.copy_(1 + torch.arange(len(table)).div(8))
        self.unfinished.clear()

    def get(self, length: int) -> torch.Tensor:
        self.finish()
        if length not in self.tables:
            self.tables[length] = torch.zeros(length)
            self.unfinished.append(self.tables[length])
            if not self.publish_early:
                self.finish()
        return self.tables[length]


class ScaledAttention(nn.Module):
    def __init__(self, width: int, cache: ScaleCache) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(width, 3 * width)
        self.cache = cache

    def forward(self, x):
        query, key, value = self.query_key_value(x).chunk(3, dim=-1)
        scale = self.cache.get(x.shape[1])
        key = key / scale[:, None]  # <- born here
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class LanguageModel(nn.Module):
    def __init__(self, cache: ScaleCache, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, width)
        self.attention = ScaledAttention(width, cache)
        self.out = nn.Linear(width, 9)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.out(x + self.attention(x))


def loss_fn(model, tokens):
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])


def _build(seed: int, publish_early: bool) -> Case:
    torch.manual_seed(seed)
    cache = ScaleCache(publish_early)
    cache.get(7)
    model = LanguageModel(cache)
    lengths = [8] * 5 + [12] * 6
    return Case(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=5e-3),
        loader=[(torch.randint(0, 9, (4, 1)) + torch.arange(n)) % 9 for n in lengths],
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, publish_early=True)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, publish_early=False)


TRUTH = Truth(
    step=5,
    phase="forward",
    op="aten.div",
    module="attention",
    line="<marker>",
    cause="hardware_or_nondeterminism",
    split="held_out",
)
