"""Fine-tuning a convolutional encoder with frozen batch norm, from a checkpoint with good weights.

In the pretraining one frame had been divided by a camera gain of zero. The loop skipped that
step, because the loss was not finite, so the weights are clean. But batch norm had already taken the
frame into its running statistics, and nobody looks at buffers.
"""

import pathlib
import shutil
import tempfile

import torch
from torch import nn

from clinic.form import Case, Truth


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, frames):
        features = torch.relu(self.norm(self.conv(frames)))
        return self.head(features.mean(dim=(2, 3)))


def loss_fn(model, batch):
    frames, label = batch
    return nn.functional.cross_entropy(model(frames), label)


def camera(num_batches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    batches = []
    for _ in range(num_batches):
        label = torch.randint(0, 3, (8,))
        batches.append((torch.randn(8, 1, 7, 7) * (1.0 + label.view(-1, 1, 1, 1)), label))
    return batches


def pretrain(batches, path: pathlib.Path) -> None:
    model = Encoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        if not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()
    torch.save({"model": model.state_dict()}, path)


def _build(seed: int, has_corrupt_frame: bool) -> Case:
    torch.manual_seed(seed)
    batches = camera(10)
    if has_corrupt_frame:
        frames, label = batches[4]
        gain = torch.ones(len(frames), 1, 1, 1)
        gain[3] = 0.0
        batches[4] = (frames / gain, label)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="encoder-"))
    pretrain(batches, folder / "pretrained.pt")
    model = Encoder()
    model.load_state_dict(torch.load(folder / "pretrained.pt")["model"])
    model.norm.eval()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        loader=camera(10),
        loss_fn=loss_fn,
        cleanup=lambda: shutil.rmtree(folder),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, has_corrupt_frame=True)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, has_corrupt_frame=False)


TRUTH = Truth(
    step=0,
    phase="checkpoint",
    op=None,
    module=None,
    line=None,
    cause="corrupt_checkpoint",
    split="held_out",
)
