"""An agent with two networks, two optimizers and a memory of its own; no loader."""
import random

import torch
from torch import nn


class Agent:
    def __init__(self):
        self.actor = nn.Linear(3, 1)
        self.critic = nn.Linear(4, 1)
        self.actor_optimizer = torch.optim.SGD(self.actor.parameters(), lr=0.001)
        self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.001)
        self.memory = [(torch.randn(3), torch.randn(1)) for _ in range(50)]

    def act(self, states):
        action = torch.tanh(self.actor(states) + torch.randn(len(states), 1))
        entropy = torch.log(0.9 - action.pow(2)).mean()  # HERE
        return action, entropy

    def update(self):
        chosen = random.sample(self.memory, 2)
        states, rewards = map(torch.stack, zip(*chosen))
        value = self.critic(torch.cat([states, rewards], 1))
        critic_loss = (value - rewards).pow(2).mean()
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        action, entropy = self.act(states)
        parts = []
        for value in self.critic(torch.cat([states, action], 1)):
            parts.append(value.mean())
        actor_loss = -0.01 * entropy
        actor_loss += -torch.stack(parts).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        return critic_loss.item(), actor_loss.item()


random.seed(0)
torch.manual_seed(7)
agent = Agent()
for _ in range(12):
    print("%.6f %.6f" % agent.update())
print("done", f"{sum(p.sum().item() for p in agent.actor.parameters()):.6f}")
