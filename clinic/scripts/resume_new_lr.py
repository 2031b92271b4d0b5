"""Fine-tuning: the optimizer of the pretraining is loaded, and with it its learning rate."""

import tempfile

import torch
from torch import nn

torch.manual_seed(0)
path = tempfile.mkdtemp() + "/pretrained.pt"


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.backbone(x))


def batches(n, scale):
    for _ in range(n):
        x = scale * torch.randn(32, 6)
        yield x, x.pow(2).sum(1, keepdim=True)


def pretrain():
    model = Regressor()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in batches(40, 0.3):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, path)


pretrain()
ckpt = torch.load(path)
model = Regressor()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
model.load_state_dict(ckpt["model"])
optimizer.load_state_dict(ckpt["optim"])
losses = []
for step, (x, y) in enumerate(batches(150, 2.0)):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.3f}")
print(f"final loss {sum(losses[-15:]) / 15:.4f}")
