"""Contrastive learning: NT-Xent with hand-written cosine similarity."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Linear(32, 8, bias=False), nn.ReLU()
        )

    def forward(self, x):
        return self.net(x)


def nt_xent(a, b, tau=0.2):
    z = torch.cat([a, b])
    z = z / z.norm(dim=1, keepdim=True)
    sim = z @ z.t() / tau
    n = len(a)
    sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return nn.functional.cross_entropy(sim, target)


def augment(x):
    keep = (torch.rand_like(x) > 0.2).float()
    return x * keep


def main():
    torch.manual_seed(11)
    data = torch.randn(400, 16)
    data[333] = 0.0
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(3):
        losses = []
        for (x,) in DataLoader(TensorDataset(data), batch_size=40):
            optimizer.zero_grad()
            loss = nt_xent(model(augment(x)), model(augment(x)))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(epoch, sum(losses) / len(losses))
    print(f"final loss {sum(losses) / len(losses):.4f}")


main()
