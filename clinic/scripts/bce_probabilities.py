"""Click prediction with a manual binary cross entropy on sigmoid outputs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)


class CTR(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 8)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids, dwell):
        e = self.embed(ids).flatten(1)
        return torch.sigmoid(self.mlp(e).squeeze(1) + dwell)


ids = torch.randint(0, 100, (600, 2))
dwell = torch.randn(600) * 0.5
dwell[410] = 40.0
clicks = (torch.rand(600) < 0.3).float()
clicks[410] = 0.0
loader = DataLoader(TensorDataset(ids, dwell, clicks), batch_size=30)
model = CTR()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
for epoch in range(5):
    total = 0.0
    for i, d, y in loader:
        p = model(i, d)
        loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} logloss {total / len(loader):.4f}")
print(f"final loss {total / len(loader):.4f}")
