"""A hand-written RMS norm in float16: for a silent input the root has nothing but its epsilon."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * scale * self.weight


class Audio(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16, bias=False)
        self.norm = RMSNorm(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.norm(self.mix(x).half()).float())


def main():
    torch.manual_seed(0)
    x = torch.randn(320, 16)
    y = x[:, :3].argmax(1)
    x[240] = 0.0
    model = Audio()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(5):
        total = 0.0
        loader = DataLoader(TensorDataset(x, y), batch_size=20)
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(xb), yb)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(epoch, total / len(loader))
    print(f"final loss {total / len(loader):.4f}")


main()
