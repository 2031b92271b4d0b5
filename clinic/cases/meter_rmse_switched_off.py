"""An energy forecaster trained on the RMSE. All layers are free of biases, so that a meter that was
off, with inputs and targets of zero, is predicted perfectly: the error is zero and the root's slope
there infinite."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class MeterRNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, 10, batch_first=True, bias=False)
        self.out = nn.Linear(10, 1, bias=False)

    def forward(self, load):
        states, _ = self.rnn(load)
        return self.out(states).squeeze(-1)


class RMSELoss(nn.Module):
    def __init__(self, eps: float = 0.0) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, pred, target):
        return (F.mse_loss(pred, target) + self.eps) ** 0.5  # <- born here


def _case(seed: int, criterion: nn.Module) -> Case:
    torch.manual_seed(seed)
    meters = []
    for i in range(12):
        load = torch.randn(4, 8, 2)
        target = load[..., 0].roll(-1, dims=1)
        is_on = 0.0 if i == 9 else 1.0
        meters.append((load * is_on, target * is_on))

    def loss_fn(model, batch):
        load, target = batch
        return criterion(model(load), target)

    model = MeterRNN()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    return Case(model, optimizer, meters, loss_fn, clip_norm=1.0)


def build(seed: int = 0) -> Case:
    return _case(seed, RMSELoss())


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, RMSELoss(eps=1e-8))


TRUTH = Truth(
    step=9,
    phase="backward",
    op="PowBackward0",
    module=None,
    line="<marker>",
    cause="singular_gradient",
    split="held_out",
)
