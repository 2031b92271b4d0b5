"""Tiny trainings with one bad batch, one for each way to replay a step; used by `stayfinite doctor`.

`stayfinite doctor` runs them: what is found shows which of the ways work on this machine. Each takes what
protects it, so that nothing here knows the guard.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["closure", "guard_step", "lightning", "loop", "transformers"]

BAD = 2


def _samples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 3, generator=generator), torch.rand(16, generator=generator) + 0.5
    y[4 * BAD + 1] = -1.0
    return x, y


def _loader() -> Any:
    return DataLoader(TensorDataset(*_samples()), batch_size=4)


def _loss(model: Any, batch: Any) -> torch.Tensor:
    x, y = batch
    loss: torch.Tensor = (model(x).squeeze(-1) - torch.log(y)).pow(2).mean()
    return loss


def guard_step(make: Callable[..., Any]) -> Any:
    """The guard calls the loss function again."""
    model = nn.Linear(3, 1)
    guard = make(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for batch in _loader():
        guard.step(_loss, batch)
    guard.close()
    return guard.incidents


def loop(make: Callable[..., Any]) -> Any:
    """The statements of the loop that the loss depends on."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = make(model, optimizer)
    for batch in guard(_loader()):
        optimizer.zero_grad()
        loss = _loss(model, batch)
        loss.backward()
        optimizer.step()
    guard.close()
    return guard.incidents


def closure(make: Callable[..., Any]) -> Any:
    """The closure that an optimizer evaluates by itself."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    guard = make(model, optimizer)
    for batch in guard(_loader()):

        def evaluate(batch: Any = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = _loss(model, batch)
            loss.backward()
            return loss

        optimizer.step(evaluate)
    guard.close()
    return guard.incidents


def lightning(callback: Any, package: Any) -> Any:
    """`training_step`."""

    class Module(package.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 1)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return _loss(self.net, batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = package.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
    )  # fmt: skip
    trainer.fit(Module(), _loader())
    return callback.incidents


def transformers(callback: Any, package: Any) -> Any:
    """`compute_loss`."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": _loss(self.net, (x, labels))}

    with tempfile.TemporaryDirectory() as folder:
        args = package.TrainingArguments(
            output_dir=folder, max_steps=4, per_device_train_batch_size=4, report_to=[],
            use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no",
        )  # fmt: skip
        samples = [{"x": a, "labels": b} for a, b in zip(*_samples())]
        package.Trainer(Model(), args, train_dataset=samples, callbacks=[callback]).train()
    return callback.incidents
