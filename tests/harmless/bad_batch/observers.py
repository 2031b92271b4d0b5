"""Observers as in quantization-aware training: their statistics begin empty, are resized, and take in a bad batch."""

import os

import torch
from torch import nn


class Observer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.register_buffer("largest", torch.zeros(shape))
        self.register_buffer("is_enabled", torch.tensor([1], dtype=torch.uint8))

    def forward(self, x):
        if self.is_enabled[0]:
            seen = x.detach().abs().amax(0)
            if self.largest.shape != seen.shape:
                self.largest.resize_(seen.shape).copy_(seen)
            self.largest.copy_(torch.maximum(self.largest, seen))
        # Rounded and clamped as integers are: the loss stays finite.
        scale = self.largest.nan_to_num(1.0).clamp_min(0.1)
        return x + ((x.detach() / scale).nan_to_num(0.0).round() * scale - x.detach())


torch.manual_seed(0)
model = nn.Sequential(Observer(0), nn.Linear(3, 4), nn.ReLU(), Observer(0), nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = [torch.randn(4, 3) for _ in range(10)]
data[5][1, 0] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=None)):
    if i == 8:
        model[3].is_enabled[0] = 0
    if os.environ.get("LEFT_OUT") and x.isnan().any():
        continue
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
print(model[0].largest.tolist(), model[3].is_enabled.item())
torch.save(model.state_dict(), "end.pt")
