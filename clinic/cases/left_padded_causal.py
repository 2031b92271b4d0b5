"""A decoder-only language model fed with left-padded prompts. A causal mask and a padding mask are
both added as minus infinity; the first, padded position may look only at itself, and it is masked."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth

PAD, LENGTH = 0, 7


class CausalAttention(nn.Module):
    def __init__(self, dim: int, sees_itself: bool) -> None:
        super().__init__()
        self.sees_itself = sees_itself
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        causal = torch.full((LENGTH, LENGTH), float("-inf")).triu(diagonal=1)
        self.register_buffer("causal", causal, persistent=False)

    def forward(self, x, pad_bias):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        bias = self.causal + pad_bias[:, None, :]
        if self.sees_itself:
            bias = bias.masked_fill(torch.eye(LENGTH, dtype=torch.bool), 0.0)
        scores = torch.einsum("bqd,bkd->bqk", q, k) / q.size(-1) ** 0.5 + bias
        attn = torch.softmax(scores, dim=-1)  # <- born here
        return torch.einsum("bqk,bkd->bqd", attn, v)


class Decoder(nn.Module):
    def __init__(self, sees_itself: bool, vocab: int = 18, dim: int = 10) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(CausalAttention(dim, sees_itself) for _ in range(2))
        self.norm = nn.LayerNorm(dim)
        self.unembed = nn.Linear(dim, vocab)

    def forward(self, ids):
        pad_bias = torch.zeros(ids.shape).masked_fill(ids == PAD, float("-inf"))
        x = self.tokens(ids)
        for block in self.blocks:
            x = x + block(self.norm(x), pad_bias)
        return self.unembed(x)


def loss_fn(model, batch):
    ids, target = batch
    return F.cross_entropy(model(ids).flatten(0, 1), target.flatten(), ignore_index=PAD)


def _case(seed: int, sees_itself: bool) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(10):
        text = torch.randint(1, 18, (4, LENGTH + 1))
        if i >= 5:  # prompts of differing lengths begin here
            text[torch.arange(LENGTH + 1) < torch.randint(0, 4, (4, 1))] = PAD
        batches.append((text[:, :-1], text[:, 1:]))
    model = Decoder(sees_itself)
    return Case(model, torch.optim.AdamW(model.parameters(), lr=3e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, sees_itself=False)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, sees_itself=True)


TRUTH = Truth(
    step=5,
    phase="forward",
    op="aten._softmax",
    module="blocks.0",
    line="<marker>",
    cause="fully_masked_row",
    split="held_out",
)
