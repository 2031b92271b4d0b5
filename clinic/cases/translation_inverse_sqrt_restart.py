"""A sequence-to-sequence model with an inverse square root schedule counted from the end of a hold phase.

On the step on which the hold ends the count is zero and its reciprocal square root is infinite. The
optimizer takes the learning rate as it comes.
"""

import torch
from torch import nn

from clinic.form import Case, Truth

HOLD = 8


class InverseSquareRoot:
    def __init__(self, first: int) -> None:
        self.first = first

    def __call__(self, step: int) -> float:
        if step < HOLD:
            return 1.0
        return torch.rsqrt(torch.tensor(float(self.first + step - HOLD))).item()


class Seq2Seq(nn.Module):
    def __init__(self, vocabulary: int = 9, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, source, target):
        _, memory = self.encoder(self.embed(source))
        decoded, _ = self.decoder(self.embed(target), memory)
        return self.out(decoded)


def loss_fn(model, batch):
    source, target = batch
    logits = model(source, target[:, :-1])
    return nn.functional.cross_entropy(logits.transpose(1, 2), target[:, 1:])


def sentences(num_batches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    sources = [torch.randint(1, 9, (6, 5)) for _ in range(num_batches)]
    return [(s, torch.cat([torch.zeros(6, 1).long(), s.flip(1)], dim=1)) for s in sources]


def _build(seed: int, first: int) -> Case:
    torch.manual_seed(seed)
    model = Seq2Seq()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    return Case(
        model=model,
        optimizer=optimizer,
        loader=sentences(16),
        loss_fn=loss_fn,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, InverseSquareRoot(first)),
        clip_norm=1.0,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, first=0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, first=1)


TRUTH = Truth(
    step=8,
    phase="optimizer",
    op="aten.add_",
    module=None,
    line=None,
    cause="bad_schedule",
    split="held_out",
)
