import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def forward(self, x):
        return self.fc(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (xb,) in DataLoader(TensorDataset(torch.randn(20, 2)), batch_size=4):
    optimizer.zero_grad()
    model(xb).pow(2).mean().backward()
    optimizer.step()
