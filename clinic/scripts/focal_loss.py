"""Imbalanced classification with a focal loss written on probabilities."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0, alpha=0.25):
        super().__init__()
        self.gamma = gamma
        self.alpha = alpha

    def forward(self, logits, targets):
        p = torch.sigmoid(logits)
        pos = -self.alpha * (1 - p) ** self.gamma * torch.log(p) * targets
        neg = -(1 - self.alpha) * p**self.gamma * torch.log(1 - p) * (1 - targets)
        return (pos + neg).mean()


torch.manual_seed(4)
x = torch.randn(640, 10)
y = (x[:, 0] + x[:, 1] > 1.8).float()
x[420] = x[420].sign() * torch.where(x[420] > 0, 600.0, 400.0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
criterion = FocalLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(x, y), batch_size=32)
for epoch in range(6):
    epoch_loss = 0
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = criterion(model(xb).squeeze(1), yb)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    print("epoch", epoch, "loss", epoch_loss / len(loader))
print(f"final loss {epoch_loss / len(loader):.4f}")
