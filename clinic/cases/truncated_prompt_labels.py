"""Instruction tuning of a small LSTM language model with the prompt masked by -100. A prompt as long
as the context leaves no answer token after truncation, and cross entropy averages over nothing."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth

VOCAB, CONTEXT = 24, 10


class LstmLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 12)
        self.lstm = nn.LSTM(12, 16, batch_first=True)
        self.decoder = nn.Linear(16, VOCAB)

    def forward(self, tokens):
        hidden, _ = self.lstm(self.embed(tokens))
        return self.decoder(hidden)


def loss_fn(model, batch):
    tokens, labels = batch
    logits = model(tokens)[:, :-1].reshape(-1, VOCAB)
    return F.cross_entropy(logits, labels[:, 1:].reshape(-1), ignore_index=-100)  # <- born here


def loss_fn_summed(model, batch):
    tokens, labels = batch
    logits = model(tokens)[:, :-1].reshape(-1, VOCAB)
    targets = labels[:, 1:].reshape(-1)
    total = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    return total / (targets != -100).sum().clamp(min=1)


def _case(seed: int, loss) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(12):
        tokens = torch.randint(0, VOCAB, (2, CONTEXT))
        prompt_length = torch.tensor([12, 15]) if i == 6 else torch.randint(2, 7, (2,))
        labels = tokens.clone()
        labels[torch.arange(CONTEXT) < prompt_length[:, None]] = -100
        batches.append((tokens, labels))
    model = LstmLM()
    return Case(model, torch.optim.AdamW(model.parameters(), lr=5e-3), batches, loss)


def build(seed: int = 0) -> Case:
    return _case(seed, loss_fn)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, loss_fn_summed)


TRUTH = Truth(
    step=6,
    phase="loss",
    op="aten.nll_loss_forward",
    module=None,
    line="<marker>",
    cause="empty_reduction",
    split="dev",
)
