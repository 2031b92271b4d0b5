"""Binary segmentation with a Dice loss over the patches that contain the organ."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Patches(Dataset):
    def __init__(self, count=96, size=16):
        g = torch.Generator().manual_seed(0)
        self.images = torch.randn(count, 1, size, size, generator=g)
        self.masks = (
            self.images + 0.3 * torch.randn(count, 1, size, size, generator=g) > 0.4
        ).float()
        self.masks[40:44] = 0
        for i in range(40, 44):
            self.images[i] = -8.0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.masks[i]


class TinyUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, padding=1)
        self.mid = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        h = torch.relu(self.down(x))
        return self.up(torch.relu(self.mid(h)) + h)


class DiceLoss(nn.Module):
    def forward(self, logits, target):
        prob = (torch.sigmoid(logits) > 0.5).float() * torch.sigmoid(logits)
        intersection = (prob * target).sum(dim=(1, 2, 3))
        cardinality = prob.sum(dim=(1, 2, 3)) + target.sum(dim=(1, 2, 3))
        dice = 2.0 * intersection / cardinality
        return 1 - dice.mean()


def main():
    torch.manual_seed(0)
    net = TinyUNet()
    criterion, bce = DiceLoss(), nn.BCEWithLogitsLoss()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
    for epoch in range(5):
        running = 0.0
        loader = DataLoader(Patches(), batch_size=8)
        for image, mask in loader:
            opt.zero_grad(set_to_none=True)
            logits = net(image)
            loss = 0.5 * bce(logits, mask) + criterion(logits, mask)
            loss.backward()
            opt.step()
            running += float(loss.detach())
        print("epoch", epoch, "loss", running / len(loader))
    print(f"final loss {running / len(loader):.4f}")


if __name__ == "__main__":
    main()
