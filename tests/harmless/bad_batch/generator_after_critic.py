"""The critic's step is refused; the generator, with batch norm, runs on in the same iteration and is averaged."""

import copy
import os

import torch
from torch import nn

torch.manual_seed(0)
maker = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
critic = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(8, 1))
average = copy.deepcopy(maker).requires_grad_(False)
makers = torch.optim.Adam(maker.parameters(), lr=0.002, betas=(0.5, 0.99))
critics = torch.optim.Adam(critic.parameters(), lr=0.002)
softplus = nn.functional.softplus
data = [torch.randn(8, 4) for _ in range(7)]
data[3][1, 0] = float("nan")
if os.environ.get("LEFT_OUT"):
    del data[3]
for real in torch.utils.data.DataLoader(data, batch_size=None):
    fake = maker(torch.randn(8, 3)).detach()
    critics.zero_grad()
    (softplus(-critic(real)).mean() + softplus(critic(fake)).mean()).backward()
    critics.step()
    makers.zero_grad()
    softplus(-critic(maker(torch.randn(8, 3)))).mean().backward()
    makers.step()
    with torch.no_grad():
        for old, new in zip(average.parameters(), maker.parameters()):
            old.lerp_(new, 0.1)
        for old, new in zip(average.buffers(), maker.buffers()):
            old.copy_(new)
print(maker[1].num_batches_tracked.item(), torch.rand(1).item())
torch.save([m.state_dict() for m in (maker, critic, average)], "end.pt")
