import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from ..net import Net


def main():
    torch.manual_seed(0)
    x = torch.rand(20, 2)
    x[14] = -4.0
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (xb,) in DataLoader(TensorDataset(x), batch_size=4):
        optimizer.zero_grad()
        loss = model(xb).pow(2).mean()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}")
    print("done", sys.argv[1:], f"{model.fc.weight.sum().item():.6f}")


if __name__ == "__main__":
    main()
