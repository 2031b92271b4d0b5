import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(7)
        for i in range(28):
            point = torch.randn(3, generator=generator)
            yield torch.zeros(3) if i == 18 else point


class Radius(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        squared = self.lift(x).pow(2).sum(-1)
        return torch.sqrt(squared)  # HERE


torch.manual_seed(0)
model = Radius()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for points in DataLoader(Stream(), batch_size=4):
    optimizer.zero_grad()
    loss = (model(points) - 1).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
print("done", f"{model.lift.weight.sum().item():.6f}")
