"""Semantic segmentation's polynomial decay, run for more steps than it was planned for."""

import argparse

import torch
from torch import nn


class PolyLR(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer, max_iters, power=0.9, last_epoch=-1):
        self.power = power
        self.max_iters = max_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        left = torch.tensor(1 - self.last_epoch / self.max_iters)
        return [base * float(left**self.power) for base in self.base_lrs]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=5e-2)
    parser.add_argument("--max-iters", type=int, default=80)
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = PolyLR(optimizer, args.max_iters)
    images = torch.randn(160, 1, 8, 8)
    masks = (images[:, 0] > 0.3).long()
    for epoch in range(args.epochs):
        total = 0.0
        for i in range(0, len(images), 8):
            out = model(images[i : i + 8])
            loss = nn.functional.cross_entropy(out, masks[i : i + 8])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / 20:.4f}")
    print(f"final loss {total / 20:.4f}")


if __name__ == "__main__":
    main()
