"""REINFORCE on a bandit: the entropy bonus from probabilities."""

import torch
import torch.nn as nn

torch.manual_seed(0)
ARMS = 6
policy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, ARMS))
optimizer = torch.optim.RMSprop(policy.parameters(), lr=5e-2)
rewards = []
for _ in range(250):
    context = torch.randn(32, 3)
    probs = torch.softmax(12 * policy(context), dim=-1)
    with torch.no_grad():
        action = torch.multinomial(probs, 1).squeeze(1)
        reward = (action == (context[:, 0] > 0).long()).float()
    chosen = probs.gather(1, action[:, None]).squeeze(1)
    entropy = -(probs * torch.log(probs)).sum(-1).mean()
    loss = -(torch.log(chosen) * (reward - 0.5)).mean() - 0.01 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    rewards.append(reward.mean().item())
print(f"final loss {1 - sum(rewards[-25:]) / 25:.4f}")
