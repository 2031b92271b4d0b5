"""Demand forecasting with the mean absolute percentage error. Days without a sale would divide by
zero, so the author cleans the ratios with `nan_to_num`; the forward is fine, but the gradient of the
division is 0 / 0 on those days."""

import torch
from torch import nn

from clinic.form import Case, Truth


class DemandNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 8, kernel_size=3, padding=2, dilation=2)
        self.out = nn.Conv1d(8, 1, kernel_size=1)

    def forward(self, x):
        return self.out(torch.tanh(self.conv(x))).squeeze(1)


def mape(pred, sold):
    ratio = (pred - sold).abs() / sold  # <- born here
    return torch.nan_to_num(ratio, nan=0.0, posinf=0.0).mean()


def mape_selected(pred, sold):
    is_open = sold > 0
    return ((pred - sold).abs()[is_open] / sold[is_open]).mean()


def _case(seed: int, metric) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(13):
        sold = torch.randint(1, 9, (4, 10)).float()
        if i == 8:
            sold[1, 6] = 0.0
        batches.append({"promo": torch.randn(4, 2, 10), "sold": sold})

    def loss_fn(model, batch):
        return metric(model(batch["promo"]), batch["sold"])

    model = DemandNet()
    return Case(model, torch.optim.NAdam(model.parameters(), lr=2e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, mape)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, mape_selected)


TRUTH = Truth(
    step=8,
    phase="backward",
    op="DivBackward0",
    module=None,
    line="<marker>",
    cause="masked_branch_leak",
    split="held_out",
)
