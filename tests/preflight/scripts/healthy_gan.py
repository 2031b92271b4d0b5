"""Two models, two optimizers, one loop."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    data = torch.randn(128, 2) @ torch.tensor([[1.0, 0.6], [0.0, 0.8]]) + 0.5
    loader = DataLoader(TensorDataset(data), batch_size=32, shuffle=True)
    maker = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
    judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    maker_opt = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judge_opt = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(5):
        for (real,) in loader:
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            fake = maker(torch.randn(len(real), 4))
            judge_opt.zero_grad()
            judge_loss = criterion(judge(real), ones) + criterion(judge(fake.detach()), zeros)
            judge_loss.backward()
            judge_opt.step()
            maker_opt.zero_grad()
            maker_loss = criterion(judge(fake), ones)
            maker_loss.backward()
            maker_opt.step()
        print(epoch, judge_loss.item(), maker_loss.item())


if __name__ == "__main__":
    main()
