"""Per-sample standardization in a transform: a constant window divides by zero."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, count=300):
        g = torch.Generator().manual_seed(0)
        self.raw = torch.randn(count, 24, generator=g).cumsum(1)
        self.raw[181] = 4.2  # the sensor was stuck
        self.label = (self.raw[:, -1] > self.raw[:, 0]).long()

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, index):
        window = self.raw[index]
        window = (window - window.mean()) / window.std()
        return window, self.label[index]


torch.manual_seed(0)
loader = DataLoader(Windows(), batch_size=20)
model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()
for epoch in range(5):
    total = 0.0
    for window, label in loader:
        optimizer.zero_grad()
        loss = criterion(model(window), label)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")
print(f"final loss {total / len(loader):.4f}")
