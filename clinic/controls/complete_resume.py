"""A resume that restores everything: moments and schedule are warm at the first step, and all is well."""

import pathlib
import shutil
import tempfile

import torch
from torch import nn

from clinic.form import Case


def loss_fn(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def assemble(batches) -> Case:
    model = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.5)
    return Case(
        model=model, optimizer=optimizer, loader=batches, loss_fn=loss_fn, scheduler=scheduler
    )


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    batches = [(x, x[:, :3].argmax(1)) for x in torch.randn(12, 10, 6)]
    before = assemble(batches)
    for batch in batches:
        before.optimizer.zero_grad()
        loss_fn(before.model, batch).backward()
        before.optimizer.step()
        before.scheduler.step()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="resume-"))
    parts = ("model", "optimizer", "scheduler")
    torch.save({p: getattr(before, p).state_dict() for p in parts}, folder / "run.pt")

    resumed = assemble(batches)
    saved = torch.load(folder / "run.pt")
    for part in parts:
        getattr(resumed, part).load_state_dict(saved[part])
    resumed.cleanup = lambda: shutil.rmtree(folder)
    return resumed
