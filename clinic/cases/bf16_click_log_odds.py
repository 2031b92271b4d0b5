"""Calibration of a click model under bfloat16 autocast: the loss compares log odds, from p / (1 - p).
A probability of 0.999 is one in bfloat16, so that 1 - p, small but not zero in float32, is zero."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class ClickModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 1)
        self.deep = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return torch.sigmoid(self.wide(x) + self.deep(x)).squeeze(1)


def log_odds(p):
    odds = p / (1 - p)  # <- born here
    return torch.log(odds + 1e-4)


def log_odds_fp32(p):
    p = p.float().clamp(1e-6, 1 - 1e-6)
    return torch.log(p / (1 - p))


def _case(seed: int, odds) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(12):
        x = torch.randn(8, 8)
        if i == 8:
            x[5] *= 24
        batches.append((x, 2 * torch.randn(8)))

    def loss_fn(model, batch):
        x, reference = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            calibrated = odds(model(x))
        return F.smooth_l1_loss(calibrated.float(), reference)

    model = ClickModel()
    return Case(model, torch.optim.Adam(model.parameters(), lr=2e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, log_odds)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, log_odds_fp32)


TRUTH = Truth(
    step=8,
    phase="loss",
    op="aten.div",
    module=None,
    line="<marker>",
    cause="low_precision_underflow",
    split="dev",
)
