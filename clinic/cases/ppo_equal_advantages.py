"""PPO with advantages normalized in every minibatch by their standard deviation. In a minibatch in
which all episodes earned the same, the advantages are all equal and the deviation is exactly zero."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
        self.actor = nn.Linear(16, 2)
        self.critic = nn.Linear(16, 1)

    def forward(self, obs):
        h = self.shared(obs)
        return torch.log_softmax(self.actor(h), dim=-1), self.critic(h).squeeze(-1)


def normalize(advantage):
    return (advantage - advantage.mean()) / advantage.std()  # <- born here


def normalize_with_floor(advantage):
    return (advantage - advantage.mean()) / (advantage.std() + 1e-6)


def _loss_fn(normalize_advantage):
    def loss_fn(model, batch):
        obs, action, old_logp, returns, advantage = batch
        log_probs, value = model(obs)
        logp = log_probs.gather(1, action.unsqueeze(1)).squeeze(1)
        adv = normalize_advantage(advantage)
        ratio = torch.exp(logp - old_logp)
        surrogate = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
        return -surrogate.mean() + 0.5 * (value - returns).pow(2).mean()

    return loss_fn


def _case(seed: int, normalize_advantage) -> Case:
    torch.manual_seed(seed)
    obs, action = torch.randn(128, 4), torch.randint(0, 2, (128,))
    returns = torch.randint(0, 5, (128,)).float()
    returns[48:64] = 1.0
    data = TensorDataset(obs, action, torch.full((128,), -0.69), returns, returns - 2.0)
    loader = DataLoader(data, batch_size=16, generator=torch.Generator().manual_seed(seed))
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    return Case(model, optimizer, loader, _loss_fn(normalize_advantage), clip_norm=0.5)


def build(seed: int = 0) -> Case:
    return _case(seed, normalize)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, normalize_with_floor)


TRUTH = Truth(
    step=3,
    phase="loss",
    op="aten.div",
    module=None,
    line="<marker>",
    cause="zero_denominator",
    split="dev",
)
