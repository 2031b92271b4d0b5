"""Fine-tuning with two parameter groups, resumed after the training script was tidied up.

The old script listed the new head first, with a high learning rate, then the pretrained body with a low
one. The new script lists them the other way round. The optimizer's state is restored by position, so
the body gets the head's learning rate. Both groups hold one tensor, so nothing complains.
"""

import pathlib
import shutil
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth

WIDTH = 32


class Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(10, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, 1, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, profile):
        hidden = nn.functional.softplus(self.body(profile))
        return self.head(hidden / WIDTH).squeeze(1)


def loss_fn(model, batch):
    profile, score = batch
    return nn.functional.mse_loss(model(profile), score)  # <- born here


def make_optimizer(model: Scorer, order: tuple[str, str]) -> torch.optim.SGD:
    rates = {"head": 2.0, "body": 1e-3}
    return torch.optim.SGD(
        [{"params": getattr(model, name).parameters(), "lr": rates[name]} for name in order]
    )


def first_run(loader, path: pathlib.Path) -> None:
    model = Scorer()
    optimizer = make_optimizer(model, ("head", "body"))
    for batch in loader:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def _build(seed: int, order: tuple[str, str]) -> Case:
    torch.manual_seed(seed)
    profile = 4 * torch.randn(160, 10)
    score = profile[:, 0].abs() - profile[:, 1]
    loader = DataLoader(TensorDataset(profile, score), batch_size=8)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="groups-"))
    first_run(loader, folder / "old.pt")
    saved = torch.load(folder / "old.pt")
    model = Scorer()
    optimizer = make_optimizer(model, order)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return Case(
        model=model,
        optimizer=optimizer,
        loader=loader,
        loss_fn=loss_fn,
        epochs=2,
        cleanup=lambda: shutil.rmtree(folder),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, ("body", "head"))


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, ("head", "body"))


TRUTH = Truth(
    step=5,
    phase=("loss", "resume"),
    op="aten.mse_loss",
    module=None,
    line="<marker>",
    cause="resume_mismatch",
    split="held_out",
)
