"""A graph convolution with symmetric normalisation: an isolated node has degree zero."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def random_graph(n, p, seed):
    g = torch.Generator().manual_seed(seed)
    upper = (torch.rand(n, n, generator=g) < p).float().triu(1)
    return upper + upper.t()


class GCN(nn.Module):
    def __init__(self, i, h, o):
        super().__init__()
        self.w1, self.w2 = nn.Linear(i, h), nn.Linear(h, o)

    @staticmethod
    def normalize(adj):
        degree = adj.sum(1)
        d_inv_sqrt = torch.pow(degree, -0.5)
        return d_inv_sqrt[:, None] * adj * d_inv_sqrt[None, :]

    def forward(self, x, adj):
        a = self.normalize(adj)
        x = F.relu(a @ self.w1(x))
        return a @ self.w2(x)


def train_epoch(model, graphs, opt):
    total = 0.0
    for adj, x, y in graphs:
        opt.zero_grad()
        loss = F.cross_entropy(model(x, adj), y)
        loss.backward()
        opt.step()
        total += loss.item()
    return total / len(graphs)


def main():
    torch.manual_seed(0)
    graphs = []
    for i in range(30):
        adj = random_graph(14, 0.55, i)
        if i == 17:
            adj[5] = 0
            adj[:, 5] = 0
        x = torch.randn(14, 6)
        graphs.append((adj, x, (x[:, 0] > 0).long()))
    model = GCN(6, 16, 2)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(5):
        last = train_epoch(model, graphs, opt)
        print(f"epoch {epoch} {last:.4f}")
    print(f"final loss {last:.4f}")


if __name__ == "__main__":
    main()
