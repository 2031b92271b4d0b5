"""PPO on a toy continuous control problem, actor with a learned log standard deviation."""

import torch
from torch import nn

torch.manual_seed(1)


class ActorCritic(nn.Module):
    def __init__(self, obs=4, act=2):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(obs, 32), nn.Tanh(), nn.Linear(32, act))
        self.critic = nn.Sequential(nn.Linear(obs, 32), nn.Tanh(), nn.Linear(32, 1))
        self.log_std = nn.Parameter(torch.zeros(act))

    def evaluate(self, obs, action):
        mean = self.actor(obs)
        var = torch.exp(2 * self.log_std)
        log_prob = -((action - mean) ** 2) / (2 * var) - self.log_std - 0.919
        return log_prob.sum(-1), self.critic(obs).squeeze(-1), self.log_std.sum() + 2.84


def rollout(policy, n=64):
    with torch.no_grad():
        obs = torch.randn(n, 4)
        mean = policy.actor(obs)
        action = mean + policy.log_std.exp() * torch.randn_like(mean)
        reward = -(action - obs[:, :2]).pow(2).sum(-1)
        logp, value, _ = policy.evaluate(obs, action)
    return obs, action, logp, reward, value


policy = ActorCritic()
opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
episode_length = [64, 64, 64, 64, 64, 1, 64, 64, 64, 64] * 3
for it, n in enumerate(episode_length):
    obs, action, old_logp, reward, value = rollout(policy, n)
    advantage = reward - value
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for _ in range(4):
        logp, v, entropy = policy.evaluate(obs, action)
        ratio = torch.exp(logp - old_logp)
        surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        loss = -surrogate.mean() + 0.5 * (reward - v).pow(2).mean() - 0.01 * entropy
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        opt.step()
    if it % 5 == 0:
        print(f"iteration {it} reward {reward.mean():.3f}")
obs, _, _, reward, _ = rollout(policy, 512)
print(f"final loss {-reward.mean():.4f}")
