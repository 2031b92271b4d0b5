"""Float16 autocast with a GradScaler that starts too high, overflows, backs off by itself and goes on.

The scaler skips the first steps and finds its scale; that is how it works and no incident.
"""

import torch
from torch import nn

from clinic.form import Case


class Regressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)


def loss_fn(model, batch):
    x, y = batch
    with torch.autocast("cpu", dtype=torch.float16):
        predicted = model(x)
    return nn.functional.mse_loss(predicted.float(), y)


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    x = torch.randn(20, 16, 8)
    model = Regressor()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loader=[(batch, 3 * batch[:, :2].sum(1)) for batch in x],
        loss_fn=loss_fn,
        scaler=torch.amp.GradScaler("cpu", init_scale=2.0**19, growth_interval=6),
        clip_norm=5.0,
    )
