"""An Elman network, hand-written cell, reads vibration recordings of very different length.

The tanh state is bounded, the loss is small, the recurrent matrix is orthogonal times a gain that an
old paper advised. Such a network is chaotic: each step of time stretches the gradient a little, and
the first recording with many hundred samples takes the product beyond what float32 can hold.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class Elman(nn.Module):
    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.read = nn.Linear(1, width)
        self.recur = nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.recur.weight, gain=gain)
        self.head = nn.Linear(width, 1)

    def forward(self, signal):
        state = signal.new_zeros(signal.shape[0], self.recur.in_features)
        for sample in signal.unbind(1):
            state = torch.tanh(self.read(sample.unsqueeze(1)) + self.recur(state))  # <- born here
        return self.head(state).squeeze(1)


def recordings(num: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    batches = []
    for index in range(num):
        length = 240 if index == 6 else 12 + index
        time = torch.arange(length) / 10
        frequency = 0.5 + torch.rand(1, 1)
        batches.append((torch.sin(frequency * time), frequency.squeeze(1)))
    return batches


def loss_fn(model, batch):
    signal, frequency = batch
    return nn.functional.huber_loss(model(signal), frequency)


def _build(seed: int, gain: float) -> Case:
    torch.manual_seed(seed)
    model = Elman(64, gain)
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-4),
        loader=recordings(7),
        loss_fn=loss_fn,
        clip_norm=1.0,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, gain=6.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, gain=0.9)


TRUTH = Truth(
    step=6,
    phase="backward",
    op="MmBackward0",
    module="recur",
    line="<marker>",
    cause="exploding_gradient",
    split="dev",
)
