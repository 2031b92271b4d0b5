"""A small transformer encoder under float16 autocast. The author takes the product of queries and
keys first and divides by the root of the head size afterwards; a batch of loud recordings makes the
raw scores exceed 65504, although the scaled ones would have fitted."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class SelfAttention(nn.Module):
    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def split(self, x):
        b, t, d = x.shape
        return x.view(b, t, self.num_heads, d // self.num_heads).transpose(1, 2)

    def scores(self, q, k):
        scores = torch.matmul(q, k.transpose(-2, -1))  # <- born here
        return scores / math.sqrt(q.size(-1))

    def forward(self, x):
        q, k, v = (self.split(part) for part in self.qkv(x).chunk(3, dim=-1))
        attn = F.softmax(self.scores(q, k), dim=-1)
        h = torch.matmul(attn, v).transpose(1, 2).flatten(2)
        return self.out(h)


class ScaledFirst(SelfAttention):
    def scores(self, q, k):
        return torch.matmul(q / math.sqrt(q.size(-1)), k.transpose(-2, -1))


class Encoder(nn.Module):
    def __init__(self, attention: type[SelfAttention], dim: int = 64) -> None:
        super().__init__()
        self.proj = nn.Linear(20, dim)
        self.attn = attention(dim, num_heads=1)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 5)

    def forward(self, frames):
        h = self.proj(frames)
        h = h + self.attn(h)
        return self.head(self.norm(h).mean(dim=1))


def loss_fn(model, batch):
    frames, label = batch
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(frames)
    return F.cross_entropy(logits.float(), label)


def _case(seed: int, attention: type[SelfAttention]) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(12):
        loudness = 250.0 if i == 7 else 1.0
        batches.append((torch.randn(4, 10, 20) * loudness, torch.randint(0, 5, (4,))))
    model = Encoder(attention)
    return Case(model, torch.optim.AdamW(model.parameters(), lr=1e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, SelfAttention)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, ScaledFirst)


TRUTH = Truth(
    step=7,
    phase="forward",
    op="aten.bmm",
    module="attn",
    line="<marker>",
    cause="low_precision_overflow",
    split="dev",
)
