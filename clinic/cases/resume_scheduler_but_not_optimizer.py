"""Collaborative filtering from tiny initial vectors, where the first learning rate may be large.

Near zero the loss surface is flat, later it is steep, and the exponential decay follows. The resume
restores model and scheduler but makes a new optimizer. `scheduler.load_state_dict` does not touch the
optimizer's learning rate, and the decay multiplies what it finds: the first, large one.
"""

import pathlib
import shutil
import tempfile

import torch
from torch import nn

from clinic.form import Case, Truth


class Preferences(nn.Module):
    def __init__(self, num_users: int = 12, num_films: int = 10, rank: int = 3) -> None:
        super().__init__()
        self.users = nn.Parameter(1e-3 * torch.randn(num_users, rank))
        self.films = nn.Parameter(1e-3 * torch.randn(num_films, rank))

    def forward(self):
        return self.users.matmul(self.films.t())  # <- born here


def loss_fn(model, ratings):
    residual = model() - ratings
    return 0.5 * residual.mul(residual).sum(dim=1).mean()


def train(case: Case, num_steps: int) -> None:
    for _ in range(num_steps):
        case.optimizer.zero_grad()
        loss_fn(case.model, case.loader[0]).backward()
        case.optimizer.step()
        case.scheduler.step()


def assemble(ratings: torch.Tensor, num_steps: int) -> Case:
    model = Preferences()
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.6)
    return Case(
        model=model,
        optimizer=optimizer,
        loader=[ratings] * num_steps,
        loss_fn=loss_fn,
        scheduler=scheduler,
    )


def _build(seed: int, restore_optimizer: bool) -> Case:
    torch.manual_seed(seed)
    ratings = 1.0 + torch.randint(0, 5, (12, 10)).float()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="preferences-"))
    before = assemble(ratings, 10)
    train(before, 10)
    parts = ("model", "optimizer", "scheduler")
    torch.save({p: getattr(before, p).state_dict() for p in parts}, folder / "run.pt")

    resumed = assemble(ratings, 20)
    saved = torch.load(folder / "run.pt")
    resumed.model.load_state_dict(saved["model"])
    resumed.scheduler.load_state_dict(saved["scheduler"])
    if restore_optimizer:
        resumed.optimizer.load_state_dict(saved["optimizer"])
    resumed.cleanup = lambda: shutil.rmtree(folder)
    return resumed


def build(seed: int = 0) -> Case:
    return _build(seed, restore_optimizer=False)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, restore_optimizer=True)


TRUTH = Truth(
    step=4,
    phase=("forward", "resume"),
    op="aten.mm",
    module="",
    line="<marker>",
    cause="resume_mismatch",
    split="held_out",
)
