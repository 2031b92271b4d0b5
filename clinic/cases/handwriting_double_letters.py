"""Handwriting recognition with CTC over the columns of an image. The encoder halves the width twice;
a word with double letters needs a blank between them, more columns than remain."""

import torch
from torch import nn

from clinic.form import Case, Truth


class LineReader(nn.Module):
    def __init__(self, second_stride: int) -> None:
        super().__init__()
        self.columns = nn.Sequential(
            nn.Conv1d(6, 12, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv1d(12, 12, 3, stride=second_stride, padding=1),
            nn.ReLU(),
        )
        self.classes = nn.Conv1d(12, 10, 1)

    def forward(self, image):
        return self.classes(self.columns(image)).permute(2, 0, 1).log_softmax(dim=-1)


class SequenceLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ctc = nn.CTCLoss(blank=0)

    def forward(self, log_probs, words):
        steps, batch, _ = log_probs.shape
        widths = torch.full((batch,), steps, dtype=torch.long)
        lengths = torch.tensor([len(w) for w in words])
        return self.ctc(log_probs, torch.cat(words), widths, lengths)  # <- born here


def _case(seed: int, second_stride: int) -> Case:
    torch.manual_seed(seed)
    criterion = SequenceLoss()
    batches = []
    for i in range(11):
        words = [torch.randperm(9)[:n] + 1 for n in (4, 5, 6)]
        if i == 7:
            words[2] = torch.tensor([3, 1, 1, 5, 5, 2])
        batches.append((torch.randn(3, 6, 28), words))

    def loss_fn(model, batch):
        image, words = batch
        return criterion(model(image), words)

    model = LineReader(second_stride)
    return Case(model, torch.optim.SGD(model.parameters(), lr=0.01), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, second_stride=2)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, second_stride=1)


TRUTH = Truth(
    step=7,
    phase="loss",
    op="aten._ctc_loss",
    module=None,
    line="<marker>",
    cause="infeasible_target",
    split="held_out",
)
