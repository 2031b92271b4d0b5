"""Two-stage training: a linear probe first, then the whole network, resumed from the probe's checkpoint.

The probe was trained with a learning rate of 0.4. The second stage builds its optimizer with 0.001 and then
loads the optimizer's state for the momentum; `load_state_dict` also restores the learning rate of the
first stage. With the backbone now in training as well, that is far too much.
"""

import pathlib
import shutil
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class ProbeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(6, 32), nn.LeakyReLU(0.1), nn.Linear(32, 32), nn.LeakyReLU(0.1)
        )
        self.probe = nn.Linear(32, 2)

    def forward(self, x):
        return self.probe(self.backbone(x))


def loss_fn(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()  # <- born here


def train_probe(loader, path: pathlib.Path) -> None:
    model = ProbeNet()
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.5)
    for batch in loader:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def _build(seed: int, keep_configured_rate: bool) -> Case:
    torch.manual_seed(seed)
    x = torch.randn(160, 6)
    y = 8 * torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs()], dim=1)
    loader = DataLoader(TensorDataset(x, y), batch_size=16)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="probe-"))
    train_probe(loader, folder / "probe.pt")
    saved = torch.load(folder / "probe.pt")
    model = ProbeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.5)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    if keep_configured_rate:
        for group in optimizer.param_groups:
            group["lr"] = 0.001
    return Case(
        model=model,
        optimizer=optimizer,
        loader=loader,
        loss_fn=loss_fn,
        epochs=2,
        cleanup=lambda: shutil.rmtree(folder),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, keep_configured_rate=False)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, keep_configured_rate=True)


TRUTH = Truth(
    step=4,
    phase=("loss", "resume"),
    op="aten.pow",
    module=None,
    line="<marker>",
    cause="resume_mismatch",
    split="dev",
)
