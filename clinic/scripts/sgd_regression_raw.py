"""Linear regression on raw, unscaled features."""

import torch
from torch import nn

torch.manual_seed(0)
size = torch.rand(200, 1) * 3000 + 300
rooms = torch.randint(1, 7, (200, 1)).float()
X = torch.cat([size, rooms], 1)
y = 0.2 * size + 20 * rooms + torch.randn(200, 1)

model = nn.Linear(2, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(400):
    pred = model(X)
    loss = criterion(pred, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 100 == 0:
        print(epoch, loss.item())
print(f"final loss {loss.item():.4f}")
