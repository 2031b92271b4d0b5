"""Adam with eps=0 and an embedding row that is never drawn."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model():
    return nn.Sequential(nn.Embedding(40, 8), nn.Flatten(), nn.Linear(32, 2))


def main():
    torch.manual_seed(0)
    tokens = torch.randint(0, 36, (256, 4))
    labels = (tokens.sum(1) % 2).long()
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=0)
    for epoch in range(6):
        total = 0.0
        loader = DataLoader(TensorDataset(tokens, labels), batch_size=32)
        for t, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(t), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(epoch, total / len(loader))
    print(f"final loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
