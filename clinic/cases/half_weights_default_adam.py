"""A reward model loaded wholly in float16 and trained with Adam at its default epsilon of 1e-8.

float16 rounds every number below 3e-8 to zero: the epsilon, and the second moment of any gradient below
about 5e-3. A finite first moment is then divided by exactly zero. Loss and gradients of the step are
ordinary.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class RewardModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU())
        self.reward = nn.Linear(24, 1)

    def forward(self, features):
        return self.reward(self.answer(features)).squeeze(1)


def loss_fn(model, batch):
    chosen, rejected = batch
    margin = model(chosen) - model(rejected)
    return -nn.functional.logsigmoid(margin.float()).mean()


def _build(seed: int, eps: float) -> Case:
    torch.manual_seed(seed)
    quality = torch.randn(60, 12)
    chosen = (quality + 0.5).half()
    rejected = (quality - 0.5 + 0.1 * torch.randn(60, 12)).half()
    model = RewardModel().half()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3, eps=eps),
        loader=DataLoader(TensorDataset(chosen, rejected), batch_size=6),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, eps=1e-8)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, eps=1e-3)


TRUTH = Truth(
    step=0,
    phase="optimizer",
    op="aten.addcdiv_",
    module=None,
    line=None,
    cause="optimizer_denominator",
    split="held_out",
)
