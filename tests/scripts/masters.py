"""A model in half precision; the optimizer moves copies of its weights in float32."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 0.5))

    def forward(self, x):
        w = torch.sigmoid(x * self.weight)
        return x * w / (w.sum(-1, keepdim=True) + 1e-20)  # HERE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.gate(x))


torch.manual_seed(0)
x = torch.randn(40, 4)
x[26] = -60.0
model = Net().half()
teacher = copy.deepcopy(model).requires_grad_(False)
masters = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.01, momentum=0.9)
for (xb,) in DataLoader(TensorDataset(x), batch_size=4):
    with torch.no_grad():
        wanted = torch.nan_to_num(teacher(xb.half()).float()) + 1.0
    loss = (model(xb.half()).float() - wanted).pow(2).mean()
    model.zero_grad()
    loss.backward()
    for master, p in zip(masters, model.parameters()):
        master.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, model.parameters()):
            p.copy_(master)
    print(f"{loss.item():.6f}")
print("done", f"{sum(p.double().sum().item() for p in (*masters, *model.parameters())):.9f}")
