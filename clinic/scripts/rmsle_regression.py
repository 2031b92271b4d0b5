"""House prices with a root mean squared logarithmic error."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class RMSLELoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.mse = nn.MSELoss()

    def forward(self, pred, actual):
        return torch.sqrt(self.mse(torch.log(pred + 1), torch.log(actual + 1)))


def main():
    torch.manual_seed(9)
    features = torch.randn(600, 8)
    price = torch.exp(1.0 + 0.4 * features[:, 0] + 0.2 * features[:, 1])
    features[350] = -40 * features[350].abs()
    train_loader = DataLoader(TensorDataset(features, price), batch_size=30)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    nn.init.constant_(net[2].bias, 2.0)
    loss_func = RMSLELoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for epoch in range(8):
        running = 0.0
        for X, y in train_loader:
            optimizer.zero_grad()
            output = net(X).squeeze(-1)
            loss = loss_func(output, y)
            loss.backward()
            optimizer.step()
            running += loss.item()
        print(f"Epoch {epoch}: {running / len(train_loader):.4f}")
    print(f"final loss {running / len(train_loader):.4f}")


if __name__ == "__main__":
    main()
