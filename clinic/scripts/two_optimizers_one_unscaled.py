"""A GAN with one GradScaler: the discriminator's optimizer steps by itself, on scaled gradients."""

import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt_g = torch.optim.SGD(G.parameters(), lr=0.01)
opt_d = torch.optim.SGD(D.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
bce = nn.BCEWithLogitsLoss()
real_data = torch.randn(256, 2) * 0.5 + 1
logs = []
for _ in range(60):
    real = real_data[torch.randint(0, 256, (32,))]
    fake = G(torch.randn(32, 4))
    loss_d = bce(D(real), torch.ones(32, 1)) + bce(D(fake.detach()), torch.zeros(32, 1))
    opt_d.zero_grad()
    scaler.scale(loss_d).backward()
    opt_d.step()
    loss_g = bce(D(fake), torch.ones(32, 1))
    opt_g.zero_grad()
    scaler.scale(loss_g).backward()
    scaler.step(opt_g)
    scaler.update()
    logs.append(loss_d.item())
print(f"final loss {sum(logs[-10:]) / 10:.4f}")
