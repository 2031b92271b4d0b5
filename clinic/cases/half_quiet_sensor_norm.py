"""A GRU on vibration signals, cast with `half()`. Each window is divided by its own standard
deviation; for a nearly quiet machine the readings are about 1e-5, their squares are below the
smallest float16 number, and the standard deviation comes out as zero."""

import torch
from torch import nn

from clinic.form import Case, Truth


class WindowNorm(nn.Module):
    def forward(self, x):
        centered = x - x.mean(dim=1, keepdim=True)
        std = (centered**2).mean(dim=1, keepdim=True).sqrt()
        return centered / std  # <- born here


class WindowNormFp32(nn.Module):
    def forward(self, x):
        centered = x.float() - x.float().mean(dim=1, keepdim=True)
        std = (centered**2).mean(dim=1, keepdim=True).sqrt()
        return (centered / std).to(x.dtype)


class FaultDetector(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.rnn = nn.GRU(3, 8, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, window):
        out, _ = self.rnn(self.norm(window))
        return self.head(out[:, -1]).squeeze(-1)


def loss_fn(model, batch):
    window, wear = batch
    return torch.nn.functional.smooth_l1_loss(model(window).float(), wear)


def _case(seed: int, norm: nn.Module) -> Case:
    torch.manual_seed(seed)
    batches = [(torch.randn(4, 12, 3).half(), torch.rand(4)) for _ in range(9)]
    batches[6][0][1] = (torch.randn(12, 3) * 2e-5).half()
    model = FaultDetector(norm).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Case(model, optimizer, batches, loss_fn, clip_norm=1.0)


def build(seed: int = 0) -> Case:
    return _case(seed, WindowNorm())


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, WindowNormFp32())


TRUTH = Truth(
    step=6,
    phase="forward",
    op="aten.div",
    module="norm",
    line="<marker>",
    cause="low_precision_underflow",
    split="held_out",
)
