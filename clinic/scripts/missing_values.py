"""Tabular regression from a CSV-like table with a missing cell."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    def __init__(self, rows):
        g = torch.Generator().manual_seed(1)
        self.x = torch.randn(rows, 6, generator=g)
        self.y = self.x.sum(1)
        self.x[177, 3] = float("nan")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.y[i]}


def train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loader = DataLoader(
        Table(320), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(3)
    )
    for epoch in range(6):
        total, count = 0.0, 0
        for batch in loader:
            optimizer.zero_grad()
            prediction = model(batch["x"]).squeeze(1)
            loss = ((prediction - batch["y"]) ** 2).mean()
            loss.backward()
            optimizer.step()
            total += loss.item()
            count += 1
        print(f"epoch {epoch} loss {total / count:.4f}")
    print(f"final loss {total / count:.4f}")


if __name__ == "__main__":
    train()
