import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(24, 3)
x[23] = float("-inf")
loader = DataLoader(TensorDataset(x), batch_size=6)
model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
for epoch in range(3):
    for (xb,) in loader:
        optimizer.zero_grad()
        loss = model(xb).pow(2).mean()  # HERE
        loss.backward()
        optimizer.step()
    scheduler.step()
    print(f"epoch {epoch} {model[1].weight.sum().item():.6f} {scheduler.get_last_lr()[0]:.4f}")
print("done")
