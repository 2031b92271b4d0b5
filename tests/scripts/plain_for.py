import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        x = torch.log(x)  # HERE
        return self.fc(self.norm(x))


torch.manual_seed(0)
x = torch.rand(40, 4) + 0.5
x[20, 1] = 0.0
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=8)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}")
print("done", f"{model.fc.weight.sum().item():.6f}")
