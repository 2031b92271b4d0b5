"""Speech recognition with CTC. A transcript is longer than the number of encoder frames of its short,
cut recording: no alignment exists and the loss is infinite."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth

NUM_LABELS = 8


class AcousticModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, 12, bidirectional=True)
        self.out = nn.Linear(24, NUM_LABELS)

    def forward(self, frames):
        hidden, _ = self.rnn(frames)
        return F.log_softmax(self.out(hidden), dim=-1)


def ctc(model, batch):
    frames, frame_count, text, text_length = batch
    return F.ctc_loss(model(frames), text, frame_count, text_length)  # <- born here


def ctc_zero_infinity(model, batch):
    frames, frame_count, text, text_length = batch
    return F.ctc_loss(model(frames), text, frame_count, text_length, zero_infinity=True)


def _case(seed: int, loss_fn) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(9):
        frame_count = torch.full((3,), 14)
        if i == 5:
            frame_count[1] = 3
        text_length = torch.tensor([4, 5, 3])
        text = torch.stack([torch.randperm(NUM_LABELS - 1)[:5] + 1 for _ in range(3)])
        batches.append((torch.randn(14, 3, 5), frame_count, text, text_length))
    model = AcousticModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Case(model, optimizer, batches, loss_fn, clip_norm=5.0)


def build(seed: int = 0) -> Case:
    return _case(seed, ctc)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, ctc_zero_infinity)


TRUTH = Truth(
    step=5,
    phase="loss",
    op="aten._ctc_loss",
    module=None,
    line="<marker>",
    cause="infeasible_target",
    split="dev",
)
