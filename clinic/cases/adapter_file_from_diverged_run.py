"""A frozen language model with low-rank adapters, which are loaded from a small file of their own.

The adapters were trained once before, with a learning rate that made them diverge, and were saved at the
end of that run without a look. The base model is fine; the file is loaded with `strict=False`.
"""

import pathlib
import shutil
import tempfile

import torch
from torch import nn

from clinic.form import Case, Truth


class LowRankLinear(nn.Module):
    def __init__(self, width: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, width) / width)
        self.up = nn.Parameter(torch.zeros(width, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


class AdaptedModel(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first = LowRankLinear(width)
        self.second = LowRankLinear(width)
        self.out = nn.Linear(width, 1).requires_grad_(False)

    def forward(self, x):
        return self.out(self.second(torch.relu(self.first(x)))).squeeze(1)


def loss_fn(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def adapters(model: AdaptedModel) -> dict[str, torch.Tensor]:
    return {name: t for name, t in model.state_dict().items() if name.endswith((".up", ".down"))}


def train_adapters(batches, lr: float, path: pathlib.Path) -> None:
    model = AdaptedModel()
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=lr)
    for batch in batches:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    torch.save(adapters(model), path)


def _build(seed: int, first_lr: float) -> Case:
    torch.manual_seed(seed)
    batches = [(x, x[:, 0] - x[:, 1]) for x in torch.randn(16, 8, 12)]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="adapter-"))
    train_adapters(batches, first_lr, folder / "adapter.pt")
    model = AdaptedModel()
    model.load_state_dict(torch.load(folder / "adapter.pt"), strict=False)
    trainable = [p for p in model.parameters() if p.requires_grad]
    return Case(
        model=model,
        optimizer=torch.optim.AdamW(trainable, lr=5e-3),
        loader=batches,
        loss_fn=loss_fn,
        cleanup=lambda: shutil.rmtree(folder),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, first_lr=30.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, first_lr=0.05)


TRUTH = Truth(
    step=0,
    phase="checkpoint",
    op=None,
    module=None,
    line=None,
    cause="corrupt_checkpoint",
    split="held_out",
)
