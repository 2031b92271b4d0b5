"""A LambdaLR whose decay was written with a factor above 1."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def decay(epoch):
    return 1.35**epoch


x = torch.randn(128, 6)
y = x @ torch.randn(6, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=16)
net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.8)
sched = torch.optim.lr_scheduler.LambdaLR(opt, decay)
losses = []
for _ in range(25):
    for xb, yb in loader:
        loss = nn.functional.mse_loss(net(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    sched.step()
print(f"final loss {sum(losses[-10:]) / 10:.4f}")
