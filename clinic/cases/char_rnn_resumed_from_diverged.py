"""A language model resumed from `last.pt`, which a run had written after it had diverged.

The first run used a learning rate that was far too high and saved every few steps without a look at the
weights. The author lowers the learning rate and resumes from the newest file.
"""

import pathlib
import shutil
import tempfile

import torch
from torch import nn

from clinic.form import Case, Truth


class CharModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 12)
        self.rnn = nn.RNN(12, 16, nonlinearity="relu", batch_first=True)
        self.out = nn.Linear(16, 8)

    def forward(self, chars):
        hidden, _ = self.rnn(self.embed(chars))
        return self.out(hidden)


def loss_fn(model, chars):
    logits = model(chars[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), chars[:, 1:].flatten())


def corpus(num_batches: int) -> list[torch.Tensor]:
    start = torch.randint(0, 8, (num_batches, 4, 1))
    return list((start + 3 * torch.arange(10)) % 8)


def first_run(batches: list[torch.Tensor], folder: pathlib.Path) -> None:
    model = CharModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=40.0, momentum=0.9)
    for step, batch in enumerate(batches):
        if step == 0:
            torch.save(model.state_dict(), folder / "first.pt")
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
        torch.save(model.state_dict(), folder / "last.pt")


def _build(seed: int, checkpoint: str) -> Case:
    torch.manual_seed(seed)
    batches = corpus(14)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="char-rnn-"))
    first_run(batches, folder)
    model = CharModel()
    model.load_state_dict(torch.load(folder / checkpoint))
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        loader=batches,
        loss_fn=loss_fn,
        cleanup=lambda: shutil.rmtree(folder),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, "last.pt")


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, "first.pt")


TRUTH = Truth(
    step=0,
    phase="checkpoint",
    op=None,
    module=None,
    line=None,
    cause="corrupt_checkpoint",
    split="dev",
)
