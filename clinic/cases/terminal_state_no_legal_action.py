"""Policy gradient with invalid actions masked to minus infinity and the log partition subtracted by
hand. In a terminal state that was left in the replay buffer no action is legal: minus infinity less
minus infinity."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class MaskedPolicy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.torso = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
        self.pi = nn.Linear(16, 6)

    def forward(self, state):
        return self.pi(self.torso(state))


def log_policy(logits, legal):
    masked = torch.where(legal, logits, -torch.inf)
    return masked - masked.logsumexp(dim=-1, keepdim=True)  # <- born here


def log_policy_live_states(logits, legal):
    is_live = legal.any(dim=-1, keepdim=True)
    masked = torch.where(legal | ~is_live, logits, -torch.inf)
    return masked - masked.logsumexp(dim=-1, keepdim=True)


def _case(seed: int, log_pi) -> Case:
    torch.manual_seed(seed)
    state, advantage = torch.randn(96, 5), torch.randn(96)
    legal = torch.rand(96, 6) < 0.6
    action = torch.randint(0, 6, (96,))
    legal[torch.arange(96), action] = True
    legal[70] = False
    loader = DataLoader(
        TensorDataset(state, legal, action, advantage),
        batch_size=8,
        generator=torch.Generator().manual_seed(seed),
    )

    def loss_fn(model, batch):
        state, legal, action, advantage = batch
        chosen = log_pi(model(state), legal)[torch.arange(len(action)), action]
        return -(chosen * advantage).mean()

    model = MaskedPolicy()
    return Case(model, torch.optim.Adam(model.parameters(), lr=1e-3), loader, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, log_policy)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, log_policy_live_states)


# logsumexp over the row gives -inf, the subtraction of it NaN; both stand on the same line.
TRUTH = Truth(
    step=8,
    phase="loss",
    op=("aten.sub", "aten.logsumexp"),
    module=None,
    line="<marker>",
    cause="fully_masked_row",
    split="dev",
)
