import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(64, 4), torch.randn(64, 1)
x[37] = 3e4
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
with torch.no_grad():
    model[0].weight.abs_()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=8)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
for xb, yb in DataLoader(TensorDataset(x, y), batch_size=8):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(xb), yb)  # HERE
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    print(f"{loss.item():.4f} {scheduler.get_last_lr()[0]:.6f} {scaler.get_scale():.0f}")
print("done", f"{sum(p.sum().item() for p in model.parameters()):.4f}")
