"""Discrete-time survival analysis. The chance to survive to a bin is the product of (1 - hazard) over
all bins before it; for a patient followed for very long the product underflows to zero before its
logarithm is taken."""

import torch
from torch import nn

from clinic.form import Case, Truth


class HazardNet(nn.Module):
    def __init__(self, num_bins: int = 240) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, num_bins))

    def forward(self, x):
        return self.net(x)


def survival_nll(hazard_logit, bin_index, is_event):
    hazard = torch.sigmoid(hazard_logit)
    survival = torch.cumprod(1 - hazard, dim=1)
    at_exit = survival.gather(1, bin_index.unsqueeze(1)).squeeze(1)
    hazard_at_exit = hazard.gather(1, bin_index.unsqueeze(1)).squeeze(1)
    event_term = is_event * torch.log(hazard_at_exit / (1 - hazard_at_exit))
    return -(event_term + at_exit.log()).mean()  # <- born here


def survival_nll_log_space(hazard_logit, bin_index, is_event):
    log_survival = torch.cumsum(nn.functional.logsigmoid(-hazard_logit), dim=1)
    at_exit = log_survival.gather(1, bin_index.unsqueeze(1)).squeeze(1)
    event_term = is_event * hazard_logit.gather(1, bin_index.unsqueeze(1)).squeeze(1)
    return -(event_term + at_exit).mean()


def _case(seed: int, nll) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(10):
        x = torch.randn(8, 5)
        exit_bin = torch.randint(0, 40, (8,))
        if i == 6:
            exit_bin[3] = 235
        batches.append((x, exit_bin, (torch.rand(8) < 0.6).float()))

    def loss_fn(model, batch):
        x, exit_bin, is_event = batch
        return nll(model(x), exit_bin, is_event)

    model = HazardNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    return Case(model, optimizer, batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, survival_nll)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, survival_nll_log_space)


TRUTH = Truth(
    step=6,
    phase="loss",
    op="aten.log",
    module=None,
    line="<marker>",
    cause="log_of_zero",
    split="held_out",
)
