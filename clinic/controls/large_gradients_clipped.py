"""An unnormalized target makes gradients of 1e12; they are finite and the clipping holds them."""

import torch
from torch import nn

from clinic.form import Case


def loss_fn(model, batch):
    x, y = batch
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model[0](x)
    return nn.functional.mse_loss(model[1](torch.relu(hidden.float())).squeeze(1), y)


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    x = torch.randn(18, 10, 6)
    model = nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 1))
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3),
        loader=[(batch, 1e12 * batch[:, 0]) for batch in x],
        loss_fn=loss_fn,
        clip_norm=1.0,
    )
