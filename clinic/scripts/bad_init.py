"""A custom layer that allocates its weight and never initializes all of it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LogScale(nn.Module):
    """Scales each feature by the logarithm of how often it was seen."""

    def __init__(self, counts):
        super().__init__()
        self.scale = nn.Parameter(torch.log(counts))

    def forward(self, x):
        return x * self.scale


def main():
    torch.manual_seed(0)
    x = (torch.rand(256, 12) > 0.5).float()
    x[:, 7] = 0.0
    y = x[:, :3].sum(1)
    counts = x.sum(0)
    model = nn.Sequential(LogScale(counts), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(6):
        total = 0.0
        loader = DataLoader(TensorDataset(x, y), batch_size=32)
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(xb).squeeze(1), yb)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")
    print(f"final loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
