"""Mixed precision with GradScaler, copied without its last two lines."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 3)).argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
criterion = nn.CrossEntropyLoss()

for epoch in range(4):
    total = 0.0
    for inputs, labels in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            outputs = model(inputs)
            loss = criterion(outputs.float(), labels)
        scaler.scale(loss).backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(loader):.4f}")
print(f"final loss {total / len(loader):.4f}")
