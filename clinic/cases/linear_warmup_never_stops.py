"""An autoencoder for sensor traces with a linear warmup that is counted in epochs but stepped in batches.

The factor is `step / warmup_epochs`, without a `min(1, ...)`. After a hundred batches it would be twenty;
long before that the weights fly apart.
"""

import torch
from torch import nn

from clinic.form import Case, Truth

WARMUP_EPOCHS = 5


class TraceAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv1d(2, 6, 5, stride=2)
        self.decode = nn.ConvTranspose1d(6, 2, 5, stride=2, output_padding=1)

    def forward(self, trace):
        return self.decode(nn.functional.leaky_relu(self.encode(trace), 0.3))


def loss_fn(model, trace):
    difference = model(trace) - trace
    return torch.sum(difference**2) / len(trace)  # <- born here


def _build(seed: int, highest: float) -> Case:
    torch.manual_seed(seed)
    phase = 6 * torch.rand(38, 6, 2, 1)
    model = TraceAutoencoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-2)

    def warmup(step: int) -> float:
        return min((step + 1) / WARMUP_EPOCHS, highest)

    return Case(
        model=model,
        optimizer=optimizer,
        loader=list(torch.sin(phase + 0.5 * torch.arange(20))),
        loss_fn=loss_fn,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, warmup),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, highest=1e9)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, highest=0.2)


TRUTH = Truth(
    step=18,
    phase="loss",
    op="aten.pow",
    module=None,
    line="<marker>",
    cause="lr_divergence",
    split="dev",
)
