"""Contextual word vectors trained with momentum SGD and a steep decay, resumed with a new scheduler.

Model and optimizer are restored, the scheduler is not saved. A new `LambdaLR` finds `initial_lr` in the
restored parameter groups and starts again at the peak, a hundred times what the run had come down to,
with the momentum of the old run and weights that have long left the flat region around zero.
"""

import math
import pathlib
import shutil
import tempfile

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from clinic.form import Case, Truth

NUM_WORDS = 14


class Glove(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(NUM_WORDS, 6)
        self.context = nn.Embedding(NUM_WORDS, 6)
        for table in (self.word, self.context):
            nn.init.normal_(table.weight, std=0.001)

    def forward(self, word, context):
        return (self.word(word) * self.context(context)).sum(-1)  # <- born here


def loss_fn(model, batch):
    word, context, log_count = batch
    return nn.functional.mse_loss(model(word, context), log_count)


def decay(step: int) -> float:
    return math.exp(-step / 3)


def co_occurrences(num_batches: int) -> list[tuple[torch.Tensor, ...]]:
    pairs = torch.cartesian_prod(torch.arange(NUM_WORDS), torch.arange(NUM_WORDS))
    log_count = 2 + torch.cos(pairs[:, 0] * 0.7) + torch.sin(pairs[:, 1] * 0.9)
    return [(pairs[:, 0], pairs[:, 1], log_count)] * num_batches


def assemble() -> tuple[Glove, torch.optim.SGD]:
    model = Glove()
    return model, torch.optim.SGD(model.parameters(), lr=8.0, momentum=0.5)


def first_run(path: pathlib.Path) -> None:
    model, optimizer = assemble()
    scheduler = LambdaLR(optimizer, decay)
    for batch in co_occurrences(14):
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
        scheduler.step()
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    torch.save({name: part.state_dict() for name, part in state.items()}, path)


def _build(seed: int, restore_scheduler: bool) -> Case:
    torch.manual_seed(seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="glove-"))
    first_run(folder / "latest.pt")
    saved = torch.load(folder / "latest.pt")
    model, optimizer = assemble()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler = LambdaLR(optimizer, decay)
    if restore_scheduler:
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    return Case(
        model=model,
        optimizer=optimizer,
        loader=co_occurrences(16),
        loss_fn=loss_fn,
        scheduler=scheduler,
        cleanup=lambda: shutil.rmtree(folder),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, restore_scheduler=False)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, restore_scheduler=True)


TRUTH = Truth(
    step=5,
    phase=("forward", "resume"),
    op="aten.mul",
    module="",
    line="<marker>",
    cause="resume_mismatch",
    split="dev",
)
