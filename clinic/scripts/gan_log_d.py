"""The original minimax GAN on a ring of Gaussians."""

import math

import torch
import torch.nn as nn

torch.manual_seed(0)
LATENT = 4


def mlp(i, o):
    return nn.Sequential(
        nn.Linear(i, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, o)
    )


def real_batch(n):
    angle = torch.randint(0, 8, (n,)) * (2 * math.pi / 8)
    return 6 * torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


G, D = mlp(LATENT, 2), nn.Sequential(mlp(2, 1), nn.Sigmoid())
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-1, betas=(0.5, 0.9))

for step in range(300):
    real = real_batch(64)
    fake = G(torch.randn(64, LATENT))
    d_loss = -(torch.log(D(real)) + torch.log(1 - D(fake.detach()))).mean()
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()

    g_loss = -torch.log(D(G(torch.randn(64, LATENT)))).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    if step % 50 == 0:
        print(f"step {step} d {d_loss.item():.3f} g {g_loss.item():.3f}")
print(f"final loss {d_loss.item():.4f}")
