"""A load forecaster whose published checkpoint was exported with every tensor converted to float16.

The weights survive that. The buffer with the spread of the training targets, about 84,000 megawatts, does
not: it is infinite in the file, and the model multiplies its output by it.
"""

import pathlib
import shutil
import tempfile

import torch
from torch import nn

from clinic.form import Case, Truth


class LoadForecaster(nn.Module):
    def __init__(self, mean: float = 0.0, spread: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("spread", torch.tensor(spread))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.lift = nn.Linear(1, 8)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(8, 1)

    def forward(self, day):
        x = (day.unsqueeze(-1) - self.mean) / self.spread
        latent = self.out(self.encoder(self.lift(x))[:, -1]).squeeze(1)
        return self.mean + self.spread * latent


def loss_fn(model, batch):
    day, following = batch
    return (model(day) - following).abs().mean() / 1000


def publish(path: pathlib.Path, dtype: torch.dtype) -> None:
    model = LoadForecaster(mean=310_000.0 / 8, spread=84_000.0)
    state = {name: value.to(dtype) for name, value in model.state_dict().items()}
    torch.save(state, path)


def _build(seed: int, dtype: torch.dtype) -> Case:
    torch.manual_seed(seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="load-"))
    publish(folder / "released.pt", dtype)
    model = LoadForecaster()
    model.load_state_dict(torch.load(folder / "released.pt"))
    loads = 38_750 + 84_000 * torch.randn(10, 6, 9)
    return Case(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        loader=[(week[:, :8], week[:, 8]) for week in loads],
        loss_fn=loss_fn,
        cleanup=lambda: shutil.rmtree(folder),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, torch.float16)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, torch.float32)


TRUTH = Truth(
    step=0,
    phase="checkpoint",
    op=None,
    module=None,
    line=None,
    cause="corrupt_checkpoint",
    split="held_out",
)
