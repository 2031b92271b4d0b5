import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 4), nn.Tanh())
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        gate = (x[:, :1] * self.body(x)).sum(-1, keepdim=True).abs().pow(0.5)  # HERE
        return self.head(self.body(x)) + gate


torch.manual_seed(0)
x = torch.randn(40, 2)
x[26, 0] = 0.0
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
for (xb,) in DataLoader(TensorDataset(x), batch_size=8):
    optimizer.zero_grad()
    loss = model(xb).pow(2).mean()
    loss.backward()
    norm = clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    print(f"{loss.item():.6f}")
print("done", f"{sum(p.sum().item() for p in model.parameters()):.6f}")
