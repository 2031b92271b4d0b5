"""Optical flow by recurrent refinement: one shared update block is applied again and again.

The state is a cosine and never leaves the interval from -1 to 1. Training starts with a few
refinements and a curriculum raises their number; backpropagation through all of them multiplies the
gradient by the same expanding Jacobian each time.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class UpdateBlock(nn.Module):
    def __init__(self, channels: int, gain: float) -> None:
        super().__init__()
        self.mix = nn.Conv2d(2 * channels, channels, 3, padding=1)
        nn.init.normal_(self.mix.weight, std=gain / (18 * channels) ** 0.5)

    def forward(self, state, context):
        return torch.cos(self.mix(torch.cat([state, context], dim=1)))  # <- born here


class FlowRefiner(nn.Module):
    def __init__(self, gain: float, channels: int = 4) -> None:
        super().__init__()
        self.context = nn.Conv2d(2, channels, 3, padding=1)
        self.update = UpdateBlock(channels, gain)
        self.flow = nn.Conv2d(channels, 2, 1)

    def forward(self, frames, num_updates):
        context = torch.tanh(self.context(frames))
        state = torch.zeros_like(context)
        for _ in range(num_updates):
            state = self.update(state, context)
        return self.flow(state)


def loss_fn(model, batch):
    frames, flow, num_updates = batch
    return nn.functional.l1_loss(model(frames, num_updates), flow)


def video(num_batches: int) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    batches = []
    for index in range(num_batches):
        frames = torch.randn(2, 2, 5, 5)
        num_updates = 8 if index < 5 else 110
        batches.append((frames, 0.3 * frames.flip(1), num_updates))
    return batches


def _build(seed: int, gain: float) -> Case:
    torch.manual_seed(seed)
    model = FlowRefiner(gain)
    return Case(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
        loader=video(7),
        loss_fn=loss_fn,
        clip_norm=1.0,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, gain=6.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, gain=0.5)


TRUTH = Truth(
    step=5,
    phase="backward",
    op="ConvolutionBackward0",
    module="update.mix",
    line="<marker>",
    cause="exploding_gradient",
    split="held_out",
)
