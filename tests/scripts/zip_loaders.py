import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(30, 4), torch.randn(30, 2)
y[17, 1] = float("nan")
inputs = DataLoader(TensorDataset(x), batch_size=5)
targets = DataLoader(TensorDataset(y), batch_size=5)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (xb,), (yb,) in zip(inputs, targets):
    optimizer.zero_grad()
    loss = (model(xb) - yb).pow(2).mean()  # HERE
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
print("done", f"{model[0].weight.sum().item():.6f}")
