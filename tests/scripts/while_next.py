import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(24, 3) + 0.1
x[13] = -1.0
loader = DataLoader(TensorDataset(x), batch_size=4)
model = nn.Linear(3, 1)
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
stream = iter(loader)
step = 0
while step < 9:
    try:
        (xb,) = next(stream)
    except StopIteration:
        stream = iter(loader)
        continue
    optimizer.zero_grad()
    root = xb.sqrt()  # HERE
    loss = (model(xb) - root.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
    step += 1
print("done", f"{model.weight.sum().item():.6f}")
