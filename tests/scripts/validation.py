import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(x), y).item() for x, y in loader]
    model.train()
    return sum(losses) / len(losses)


def main():
    torch.manual_seed(0)
    x, y = torch.randn(40, 3), torch.randn(40, 1)
    train = DataLoader(TensorDataset(x[:32], y[:32]), batch_size=4, shuffle=False)
    valid = DataLoader(TensorDataset(x[32:], y[32:]), batch_size=4)
    y[25] = float("inf")
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(2):
        for i, (xb, yb) in enumerate(train):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(xb), yb)  # HERE
            loss.backward()
            optimizer.step()
            if i == 3:
                print(f"between {evaluate(model, valid):.6f}")
        print(f"end {evaluate(model, valid):.6f}")
    print("done", f"{model[1].running_mean.sum().item():.6f}")


if __name__ == "__main__":
    main()
