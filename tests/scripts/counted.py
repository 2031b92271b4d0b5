"""A loop that counts in three ways, accumulates by its count and stops by it."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Progress:
    def __init__(self):
        self.total = 0


class Trainer:
    def __init__(self):
        self.progress = Progress()
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def fit(self, loader, accumulate, most):
        seen = 0
        for i, (x, y) in enumerate(loader, start=1):
            out = self.model(x).squeeze(1)
            weight = y / y.sum()  # HERE
            loss = (weight * (out - y).pow(2)).sum() / accumulate
            loss.backward()
            seen += 1
            self.progress.total += 1
            if i % accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
                print("step", i, seen, self.progress.total, f"{loss.item():.6f}")
            if i >= most:
                break
        print("done", i, seen, self.progress.total, f"{self.model.weight.sum().item():.6f}")


torch.manual_seed(1)
x, y = torch.randn(40, 3), torch.rand(40)
y[14:16] = 0.0
Trainer().fit(DataLoader(TensorDataset(x, y), batch_size=2), 4, 16)
