import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Pool(nn.Module):
    def forward(self, x, keep):
        total = (x * keep.unsqueeze(-1)).sum(1)
        return total / keep.sum(1, keepdim=True)  # HERE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({"embed": nn.Linear(3, 8), "pool": Pool()})
        self.head = nn.Linear(8, 2)

    def forward(self, x, keep):
        return self.head(self.encoder["pool"](self.encoder["embed"](x), keep))


def main():
    torch.manual_seed(0)
    x, keep = torch.randn(48, 5, 3), (torch.rand(48, 5) > 0.3).float()
    keep[keep.sum(1) == 0, 0] = 1.0
    keep[29] = 0.0
    y = torch.randint(2, (48,))
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for i, (xb, kb, yb) in enumerate(DataLoader(TensorDataset(x, keep, y), batch_size=8)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(xb, kb), yb)
        loss.backward()
        optimizer.step()
        if i % 1 == 0:
            print(f"{loss.item():.6f}")
    print("done", f"{model.head.bias.sum().item():.6f}")


if __name__ == "__main__":
    main()
