"""Regression of insurance claims in cents; checkpoints store the optimizer's moments in float16.

The weights are saved in full precision, Adam's two moments in half to make the file smaller. With targets
in the hundred thousands the moments are beyond 65504 and the file holds infinities. The resumed
run computes one good loss, and its first update is infinity by infinity.
"""

import pathlib
import shutil
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class ClaimsNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, policy):
        return 1e5 * self.layers(policy).squeeze(1)


def loss_fn(model, batch):
    policy, cents = batch
    return nn.functional.mse_loss(model(policy), cents)


def compress(state: dict, dtype: torch.dtype) -> dict:
    moments = {
        key: {name: v.to(dtype) if name != "step" else v for name, v in entry.items()}
        for key, entry in state["state"].items()
    }
    return {**state, "state": moments}


def first_run(loader, path: pathlib.Path, dtype: torch.dtype) -> None:
    model = ClaimsNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for batch in loader:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    optimizer_state = compress(optimizer.state_dict(), dtype)
    torch.save({"model": model.state_dict(), "optimizer": optimizer_state}, path)


def _build(seed: int, dtype: torch.dtype) -> Case:
    torch.manual_seed(seed)
    policy = torch.rand(80, 5)
    loader = DataLoader(TensorDataset(policy, 3e5 * policy.mean(1)), batch_size=8)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="claims-"))
    first_run(loader, folder / "epoch1.pt", dtype)
    saved = torch.load(folder / "epoch1.pt")
    model = ClaimsNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return Case(
        model=model,
        optimizer=optimizer,
        loader=loader,
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
    split="dev",
)
