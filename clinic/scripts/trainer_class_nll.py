"""A Trainer class; Gaussian negative log-likelihood with a variance from relu."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Heteroscedastic(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(5, 32), nn.Tanh())
        self.mean = nn.Linear(32, 1)
        self.var = nn.Linear(32, 1)

    def forward(self, x):
        h = self.shared(x)
        return self.mean(h), torch.relu(self.var(h) + 1.0)


class Trainer:
    def __init__(self, model, lr=5e-3, epochs=6):
        self.model = model
        self.epochs = epochs
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def compute_loss(self, batch):
        x, y = batch
        mean, var = self.model(x)
        return (0.5 * torch.log(var) + 0.5 * (y - mean) ** 2 / var).mean()

    def training_step(self, batch):
        self.optimizer.zero_grad()
        loss = self.compute_loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, loader):
        for epoch in range(self.epochs):
            losses = [self.training_step(batch) for batch in loader]
            print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}")
        return sum(losses) / len(losses)


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(480, 5)
    y = x[:, :1] + 0.05 * torch.randn(480, 1)
    x[260] = 25.0 * torch.sign(x[260])
    trainer = Trainer(Heteroscedastic())
    print(f"final loss {trainer.fit(DataLoader(TensorDataset(x, y), batch_size=24)):.4f}")
