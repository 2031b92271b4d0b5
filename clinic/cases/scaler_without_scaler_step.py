"""A character-level GRU whose author scales the loss but steps the plain optimizer.

`scaler.scale(loss).backward()` was copied from a tutorial; `scaler.step(optimizer)` was not. Nothing takes
the factor of 65536 out of the gradients again, and the very ordinary learning rate acts as one that is
65536 times as large.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class CharModel(nn.Module):
    def __init__(self, num_chars: int = 10, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(num_chars, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.mix = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.out = nn.Linear(width, num_chars)

    def forward(self, chars):
        hidden, _ = self.rnn(self.embed(chars))
        return self.out(self.mix(hidden))  # <- born here


def scaled_loss_fn(scaler):
    def loss_fn(model, chars):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(chars[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), chars[:, 1:].flatten())
        return scaler.scale(loss)

    return loss_fn


def _build(seed: int, enabled: bool) -> Case:
    torch.manual_seed(seed)
    start = torch.randint(0, 10, (12, 4, 1))
    model = CharModel()
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, enabled=enabled)
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        loader=list((start + 3 * torch.arange(8)) % 10),
        loss_fn=scaled_loss_fn(scaler),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, enabled=True)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, enabled=False)


TRUTH = Truth(
    step=3,
    phase="forward",
    op="aten.addmm",
    module="out",
    line="<marker>",
    cause="loss_scaling",
    split="dev",
)
