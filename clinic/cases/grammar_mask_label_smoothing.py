"""Constrained decoding in training: logits of tokens that the grammar forbids are set to the smallest
float32, and the cross entropy uses label smoothing. Smoothing puts a share of the target on every
class, and the sum over two forbidden ones exceeds float32."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth

VOCAB = 14


class GrammarLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 10)
        self.gru = nn.GRU(10, 16, batch_first=True)
        self.head = nn.Linear(16, VOCAB)

    def forward(self, tokens, allowed):
        hidden, _ = self.gru(self.embed(tokens))
        logits = self.head(hidden)
        return logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)


def smoothed_loss(model, batch):
    tokens, allowed, target = batch
    logits = model(tokens, allowed).flatten(0, 1)
    return F.cross_entropy(logits, target.flatten(), label_smoothing=0.1)  # <- born here


def hard_loss(model, batch):
    tokens, allowed, target = batch
    logits = model(tokens, allowed).flatten(0, 1)
    return F.cross_entropy(logits, target.flatten())


def _case(seed: int, loss_fn) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(10):
        tokens, target = torch.randint(0, VOCAB, (2, 4, 6))
        allowed = torch.ones(4, 6, VOCAB, dtype=torch.bool)
        if i >= 6:  # the grammar is switched on
            allowed = torch.rand(4, 6, VOCAB) < 0.7
            allowed.scatter_(2, target.unsqueeze(2), True)
        batches.append((tokens, allowed, target))
    model = GrammarLM()
    return Case(model, torch.optim.Adam(model.parameters(), lr=5e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, smoothed_loss)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, hard_loss)


TRUTH = Truth(
    step=6,
    phase="loss",
    op="aten.sum",
    module=None,
    line="<marker>",
    cause="infeasible_target",
    split="dev",
)
