"""Multi-task labels with gaps: the loss is the mean over labelled entries of each task."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MultiTask(nn.Module):
    def __init__(self, tasks=3):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(32, 1) for _ in range(tasks)])

    def forward(self, x):
        h = self.trunk(x)
        return torch.cat([head(h) for head in self.heads], 1)


def masked_bce(logits, labels):
    loss = 0
    for task in range(labels.shape[1]):
        known = labels[:, task] >= 0
        loss = loss + nn.functional.binary_cross_entropy_with_logits(
            logits[known, task], labels[known, task]
        )
    return loss / labels.shape[1]


def main():
    torch.manual_seed(0)
    x = torch.randn(320, 10)
    labels = (x[:, :3] > 0).float()
    labels[torch.rand(320, 3) < 0.4] = -1
    labels[160:176, 2] = -1
    model = MultiTask()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(x, labels), batch_size=16)
    for epoch in range(5):
        total = 0
        for xb, yb in loader:
            loss = masked_bce(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(epoch, total / len(loader))
    print(f"final loss {total / len(loader):.4f}")


main()
