"""REINFORCE on a contextual bandit. The policy's probabilities come from a softmax and are logged
afterwards; at the low temperature of late exploration, and for an observation far from the others,
the probability of the action taken is exactly zero in float32."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class Policy(nn.Module):
    def __init__(self, temperature: float = 0.05) -> None:
        super().__init__()
        self.temperature = temperature
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.logits = nn.Linear(32, 4)

    def forward(self, obs):
        return self.logits(self.body(obs)) / self.temperature


def reinforce_loss(policy, batch):
    obs, action, advantage = batch
    probs = F.softmax(policy(obs), dim=-1)
    chosen = probs.gather(1, action.unsqueeze(1)).squeeze(1)
    return -(torch.log(chosen) * advantage).mean()  # <- born here


def reinforce_loss_log_softmax(policy, batch):
    obs, action, advantage = batch
    log_probs = F.log_softmax(policy(obs), dim=-1)
    chosen = log_probs.gather(1, action.unsqueeze(1)).squeeze(1)
    return -(chosen * advantage).mean()


def _case(seed: int, loss_fn) -> Case:
    torch.manual_seed(seed)
    obs = torch.randn(160, 6)
    obs[112:116] *= 20
    action = torch.randint(0, 4, (160,))
    advantage = 0.1 * torch.randn(160)
    loader = DataLoader(
        TensorDataset(obs, action, advantage),
        batch_size=16,
        generator=torch.Generator().manual_seed(seed),
    )
    policy = Policy()
    return Case(policy, torch.optim.Adam(policy.parameters(), lr=3e-3), loader, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, reinforce_loss)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, reinforce_loss_log_softmax)


TRUTH = Truth(
    step=7,
    phase="loss",
    op="aten.log",
    module=None,
    line="<marker>",
    cause="log_of_zero",
    split="dev",
)
