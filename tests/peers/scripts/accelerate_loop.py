"""A loop prepared by the real Accelerator, with its gradient accumulation."""
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
x, y = torch.randn(96, 3), torch.randn(96)
x[41] = 0.0
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(TensorDataset(x, y), batch_size=4))
for xb, yb in loader:
    with accelerator.accumulate(model):
        unit = xb / xb.norm(dim=1, keepdim=True)  # HERE
        loss = (model(unit).squeeze(1) - yb).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
print("finite", all(torch.isfinite(p).all().item() for p in model.parameters()))
