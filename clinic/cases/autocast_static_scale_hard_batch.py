"""Image restoration under float16 autocast with the static loss scale of an old recipe, 2 to the 14.

The sum of the errors is taken in float32, so the loss is finite. Its gradient has to go back through the
half precision output; on a batch with a few large errors the scaled gradient is beyond 65504 there, though
without the scale it would be ordinary.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class UnscaledAdamW(torch.optim.AdamW):
    def __init__(self, params, scale: float, **options) -> None:
        super().__init__(params, **options)
        self.scale = scale
        self.register_step_pre_hook(self._unscale)

    def _unscale(self, optimizer, args, kwargs) -> None:
        gradients = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        torch._foreach_div_(gradients, self.scale)


class Restorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(16, 32)
        self.decode = nn.Linear(32, 16)

    def forward(self, patches):
        return self.decode(nn.functional.gelu(self.encode(patches)))


class ScaledCriterion(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, restored, clean):
        error = restored.float() - clean  # <- born here
        return self.scale * error.square().sum(1).mean()


def damaged_patches(num_batches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    batches = []
    for index in range(num_batches):
        clean = torch.rand(8, 16)
        if index == 6:
            clean[3, 4:8] += 20.0  # overexposed
        batches.append((clean + 0.1 * torch.randn(8, 16), clean))
    return batches


def _build(seed: int, scale: float) -> Case:
    torch.manual_seed(seed)
    model = Restorer()
    criterion = ScaledCriterion(scale)

    def loss_fn(net, batch):
        damaged, clean = batch
        with torch.autocast("cpu", dtype=torch.float16):
            restored = net(damaged)
        return criterion(restored, clean)

    return Case(
        model=model,
        optimizer=UnscaledAdamW(model.parameters(), scale, lr=2e-3),
        loader=damaged_patches(12),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, scale=2.0**14)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, scale=2.0**7)


TRUTH = Truth(
    step=6,
    phase="backward",
    op="ToCopyBackward0",
    module=None,
    line="<marker>",
    cause="loss_scaling",
    split="held_out",
)
