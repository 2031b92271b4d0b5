import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def look_up(table, key):
    return table[key]


def main():
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (xb,) in enumerate(DataLoader(TensorDataset(torch.randn(20, 2)), batch_size=4)):
        optimizer.zero_grad()
        loss = model(xb).pow(2).mean()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}")
        if i == 3:
            try:
                look_up({}, "weights")
            except KeyError as e:
                raise RuntimeError("no weights for step 3") from e


if __name__ == "__main__":
    main()
