"""A mixture density network; the likelihood is summed before the logarithm."""

import torch
import torch.nn as nn


class MDN(nn.Module):
    def __init__(self, n_hidden=24, n_gaussians=5):
        super().__init__()
        self.z_h = nn.Sequential(nn.Linear(1, n_hidden), nn.Tanh())
        self.z_pi = nn.Linear(n_hidden, n_gaussians)
        self.z_mu = nn.Linear(n_hidden, n_gaussians)
        self.z_sigma = nn.Linear(n_hidden, n_gaussians)

    def forward(self, x):
        z_h = self.z_h(x)
        pi = nn.functional.softmax(self.z_pi(z_h), -1)
        mu = self.z_mu(z_h)
        sigma = torch.exp(self.z_sigma(z_h))
        return pi, mu, sigma


def mdn_loss(y, mu, sigma, pi):
    m = torch.distributions.Normal(loc=mu, scale=sigma)
    loss = torch.exp(m.log_prob(y))
    loss = torch.sum(loss * pi, dim=1)
    loss = -torch.log(loss)
    return torch.mean(loss)


torch.manual_seed(3)
n = 400
y = torch.rand(n, 1) * 20 - 10
x = torch.sin(0.75 * y) * 7.0 + y * 0.5 + torch.randn(n, 1)
x[320], y[320] = 3.0, 300.0
network = MDN()
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
for epoch in range(20):
    total = 0.0
    for i in range(0, n, 40):
        pi, mu, sigma = network(x[i : i + 40])
        loss = mdn_loss(y[i : i + 40], mu, sigma, pi)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    if epoch % 5 == 0:
        print(epoch, total / 10)
print(f"final loss {total / 10:.4f}")
