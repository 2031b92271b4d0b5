"""A generator's graph is begun before the critic's step, which is refused, and gone through after it."""

import os

import torch
from torch import nn

torch.manual_seed(0)
data = torch.randn(48, 4)
data[21, 0] = float("nan")
maker = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
critic = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (maker, critic)]
bce = nn.BCEWithLogitsLoss()
for i, real in enumerate(torch.utils.data.DataLoader(data, batch_size=8)):
    if os.environ.get("LEFT_OUT") and i == 2:
        continue
    optimizers[1].zero_grad()
    bce(critic(real), torch.ones(8, 1)).backward()
    fake = maker(torch.randn(8, 4))
    bce(critic(fake.detach()), torch.zeros(8, 1)).backward()
    optimizers[1].step()
    optimizers[0].zero_grad()
    bce(critic(fake), torch.ones(8, 1)).backward()
    optimizers[0].step()
print([v.sum().item() for m in (maker, critic) for v in m.state_dict().values()])
