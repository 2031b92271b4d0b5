"""SequentialLR of a warmup and a cosine, moved after each step."""
# slow

import os

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
schedule = SequentialLR(
    optimizer, [LinearLR(optimizer, 0.1, total_iters=3), CosineAnnealingLR(optimizer, 6)], [3]
)
data = torch.randn(20, 2)
data[6] = float("nan")
rates = []
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=2)):
    if os.environ.get("LEFT_OUT") and i == 3:
        continue
    optimizer.zero_grad()
    (model(x) - 1).pow(2).mean().backward()
    optimizer.step()
    schedule.step()
print(schedule.state_dict()["last_epoch"], optimizer.param_groups[0]["lr"], model.weight.tolist())
