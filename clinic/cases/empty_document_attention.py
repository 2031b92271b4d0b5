"""Document classification with hand-written self-attention. Padding keys are set to minus infinity
before the softmax; a document that is empty after cleaning has nothing but padding, and its rows are
softmaxes over minus infinity alone."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth

PAD = 0


class MaskedAttention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def weights(self, scores, is_pad):
        scores = scores.masked_fill(is_pad[:, None, :], float("-inf"))
        return F.softmax(scores, dim=-1)  # <- born here

    def forward(self, x, is_pad):
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.size(-1) ** 0.5
        return self.weights(scores, is_pad) @ self.value(x)


class MaskedAttentionFinite(MaskedAttention):
    def weights(self, scores, is_pad):
        scores = scores.masked_fill(is_pad[:, None, :], torch.finfo(scores.dtype).min)
        return F.softmax(scores, dim=-1)


class DocClassifier(nn.Module):
    def __init__(self, attention: type[MaskedAttention], dim: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, dim, padding_idx=PAD)
        self.layers = nn.ModuleList(attention(dim) for _ in range(2))
        self.head = nn.Linear(dim, 3)

    def forward(self, tokens):
        is_pad = tokens == PAD
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x, is_pad)
        return self.head(x.mean(dim=1))


def loss_fn(model, batch):
    tokens, topic = batch
    return F.cross_entropy(model(tokens), topic)


def _case(seed: int, attention: type[MaskedAttention]) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(12):
        tokens = torch.randint(1, 40, (5, 9))
        tokens[torch.arange(9) >= torch.randint(3, 10, (5, 1))] = PAD
        if i == 6:
            tokens[4] = PAD
        batches.append((tokens, torch.randint(0, 3, (5,))))
    model = DocClassifier(attention)
    return Case(model, torch.optim.AdamW(model.parameters(), lr=2e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, MaskedAttention)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, MaskedAttentionFinite)


TRUTH = Truth(
    step=6,
    phase="forward",
    op="aten._softmax",
    module="layers.0",
    line="<marker>",
    cause="fully_masked_row",
    split="dev",
)
