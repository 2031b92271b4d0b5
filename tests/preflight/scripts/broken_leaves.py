"""Embeddings made as plain tensors in a list: they get gradients, and nobody trains them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    users, items = torch.arange(97) % 12, torch.arange(97) % 20
    rating = torch.randn(97)
    loader = DataLoader(TensorDataset(users, items, rating), batch_size=16, shuffle=True)
    tables = [torch.rand(12, 8, requires_grad=True), torch.rand(20, 8, requires_grad=True)]
    head = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
    for _ in range(3):
        for user, item, wanted in loader:
            optimizer.zero_grad()
            features = torch.cat([tables[0][user], tables[1][item]], dim=1)
            loss = nn.functional.mse_loss(head(features).squeeze(-1), wanted)
            loss.backward()
            optimizer.step()


main()
