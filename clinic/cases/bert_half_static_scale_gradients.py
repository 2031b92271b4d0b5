"""A sentence classifier wholly in float16 with a loss scale of 8192 that worked for the pretraining.

Loss and activations are small. The gradient with respect to the last layer's weights sums over a batch of
long sentences; with the scale in it, the sum is beyond 65504 as soon as the sentences are long enough.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class HalfSGD(torch.optim.SGD):
    def __init__(self, params, lr: float, scale: float) -> None:
        super().__init__(params, lr=lr / scale)


class SentenceModel(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(20, width)
        self.mix = nn.Linear(width, width)
        self.tag = nn.Linear(width, 3)

    def forward(self, words):
        return self.tag(4 * torch.tanh(self.mix(self.words(words))))  # <- born here


def scaled(scale: float):
    def loss_fn(model, words):
        logits = model(words).float()
        per_word = nn.functional.cross_entropy(
            logits.flatten(0, 1), words.flatten() % 3, reduction="sum"
        )
        return scale * per_word / len(words)

    return loss_fn


def _build(seed: int, scale: float) -> Case:
    torch.manual_seed(seed)
    lengths = [4, 5, 4, 6, 5, 4, 5, 40, 5, 4]
    model = SentenceModel().half()
    return Case(
        model=model,
        optimizer=HalfSGD(model.parameters(), lr=2e-3, scale=scale),
        loader=[torch.randint(0, 20, (4, n)) for n in lengths],
        loss_fn=scaled(scale),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, scale=8192.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, scale=64.0)


TRUTH = Truth(
    step=7,
    phase="backward",
    op="AddmmBackward0",
    module="tag",
    line="<marker>",
    cause="loss_scaling",
    split="dev",
)
