"""Behaviour cloning with a squashed Gaussian: a recorded action is exactly 1, and its atanh infinite."""

import torch
from torch import nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)

    def forward(self, obs):
        mean, log_std = self.net(obs).chunk(2, -1)
        base = Normal(mean, log_std.clamp(-3, 1).exp())
        return Independent(
            TransformedDistribution(base, [TanhTransform()], validate_args=False),
            1,
            validate_args=False,
        )


def build():
    torch.manual_seed(0)
    model = Policy()
    batches = []
    for i in range(12):
        action = torch.tanh(torch.randn(8, 2))
        if i == 5:
            action[2, 0] = 1.0
        batches.append((torch.randn(8, 4), action, torch.rand(8)))

    def loss_fn(model, batch):
        obs, action, weight = batch
        dist = model(obs)
        return -(dist.log_prob(action) * weight).mean()

    return model, torch.optim.Adam(model.parameters(), lr=1e-3), batches, loss_fn


model, optimizer, batches, loss_fn = build()
losses = []
for _ in range(3):
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(f"final loss {sum(losses[-10:]) / 10:.4f}")
