"""Behavior cloning on logs of a card game with illegal moves masked to minus infinity. The logs and
the mask come from two versions of the rules; a logged move that the mask forbids has a cross entropy
of plus infinity."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class MovePolicy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 7))

    def forward(self, state, is_legal):
        return self.net(state).masked_fill(~is_legal, float("-inf"))


def cloning_loss(model, batch):
    state, is_legal, move = batch
    return F.cross_entropy(model(state, is_legal), move)  # <- born here


def cloning_loss_checked(model, batch):
    state, is_legal, move = batch
    is_known = is_legal.gather(1, move.unsqueeze(1)).squeeze(1)
    return F.cross_entropy(model(state, is_legal)[is_known], move[is_known])


def _case(seed: int, loss_fn) -> Case:
    torch.manual_seed(seed)
    state, is_legal = torch.randn(120, 9), torch.rand(120, 7) < 0.5
    move = torch.randint(0, 7, (120,))
    is_legal[torch.arange(120), move] = True
    is_legal[77, move[77]] = False
    is_legal[77, (move[77] + 1) % 7] = True
    loader = DataLoader(
        TensorDataset(state, is_legal, move),
        batch_size=10,
        generator=torch.Generator().manual_seed(seed),
    )
    model = MovePolicy()
    return Case(model, torch.optim.Adam(model.parameters(), lr=2e-3), loader, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, cloning_loss)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, cloning_loss_checked)


TRUTH = Truth(
    step=7,
    phase="loss",
    op="aten.nll_loss_forward",
    module=None,
    line="<marker>",
    cause="infeasible_target",
    split="held_out",
)
