"""Keyword spotting: a 1-d convolutional network on raw audio, each clip standardized on its own.

`(x - x.mean()) / x.std()` is in the data set's `__getitem__`. One clip was recorded with the
microphone muted, so all its samples are the same and the standard deviation is zero.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from clinic.form import Case, Truth

MUTED_CLIP = 77


class SpeechCommands(Dataset):
    def __init__(self, num_clips: int, floor: float) -> None:
        generator = torch.Generator().manual_seed(11)
        self.labels = torch.randint(0, 4, (num_clips,), generator=generator)
        time = torch.arange(64) / 64
        tones = torch.sin(2 * torch.pi * (self.labels[:, None] + 2) * time)
        self.clips = tones + 0.1 * torch.randn(num_clips, 64, generator=generator)
        self.clips[MUTED_CLIP] = 0.0
        self.floor = floor

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index):
        wave = self.clips[index]
        wave = (wave - wave.mean()) / wave.std().clamp(min=self.floor)
        return wave.unsqueeze(0), self.labels[index]


def keyword_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, 8, 9, stride=4),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Conv1d(8, 16, 5, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


def loss_fn(model, batch):
    wave, label = batch
    return nn.functional.cross_entropy(model(wave), label)


def _build(seed: int, floor: float) -> Case:
    torch.manual_seed(seed)
    model = keyword_net()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        loader=DataLoader(SpeechCommands(160, floor), batch_size=8),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, floor=0.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, floor=1e-5)


TRUTH = Truth(
    step=9, phase="data", op=None, module=None, line=None, cause="bad_preprocessing", split="dev"
)
