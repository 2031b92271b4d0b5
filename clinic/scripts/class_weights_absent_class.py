"""Class weights by inverse frequency, of a data set in which one class never occurs."""

import torch
from torch import nn

torch.manual_seed(0)
CLASSES = 5


def class_weights(labels):
    counts = torch.bincount(labels, minlength=CLASSES).float()
    return counts.sum() / (len(counts) * counts)


class Trainer:
    def __init__(self, x, y):
        self.x, self.y = x, y
        self.model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))
        self.criterion = nn.CrossEntropyLoss(weight=class_weights(y), label_smoothing=0.1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def fit(self, steps):
        losses = []
        for _ in range(steps):
            idx = torch.randint(0, len(self.x), (32,))
            loss = self.criterion(self.model(self.x[idx]), self.y[idx])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return sum(losses[-10:]) / 10


x = torch.randn(300, 6)
y = x[:, :4].argmax(1)
print(f"final loss {Trainer(x, y).fit(80):.4f}")
