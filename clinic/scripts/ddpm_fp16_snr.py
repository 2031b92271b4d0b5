"""A toy diffusion model with min-SNR weighting computed in half precision."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
T = 1000
betas = torch.linspace(1e-6, 0.02, T)
alphas_cumprod = torch.cumprod(1 - betas, 0)


class Denoiser(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.time = nn.Embedding(T, 32)
        self.inp = nn.Linear(dim, 32)
        self.out = nn.Linear(32, dim)

    def forward(self, x, t):
        return self.out(F.silu(self.inp(x) + self.time(t)))


def snr_weight(t):
    a = alphas_cumprod[t].half()
    snr = a / (1 - a)
    return torch.clamp(snr, max=5.0) / snr * (snr / (snr + 1))


model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
losses = []
for step in range(160):
    x0 = torch.randn(8, 8)
    t = torch.randint(0, T, (8,))
    noise = torch.randn_like(x0)
    a = alphas_cumprod[t][:, None]
    xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
    loss = (snr_weight(t)[:, None] * (model(xt, t) - noise) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.4f}")
print(f"final loss {sum(losses[-20:]) / 20:.4f}")
