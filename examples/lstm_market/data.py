"""Synthetic market bars: 60 bars of 110 features, and where the price goes next (down, flat, up).

Nothing is downloaded. Some instruments trade thinly: most of their bars see one or two lots, and now
and then somebody crosses a block of a hundred thousand. Relative volume (a bar's volume over the
median of the bars before it) is a usual feature and harmless for liquid instruments.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

BARS, FEATURES, CLASSES = 60, 110, 3
VOLUME_COLUMNS = slice(100, 104)
"""Relative volume over four windows: the only columns that are no z-scores."""
WINDOWS = (5, 10, 20, 40)


def generate(folder: Path, count: int, seed: int) -> Path:
    """Write `count` sequences and their labels into `folder`; an existing file is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"market-{count}-{seed}.npz"
    if path.exists():
        return path
    rng = np.random.default_rng(seed)
    trend = rng.normal(size=count)
    x = rng.normal(size=(count, BARS, FEATURES)).astype(np.float32)
    market = np.random.default_rng(0)  # which features follow the trend is the same in every file
    loadings = market.normal(size=100) * (market.random(100) < 0.3)
    strength = np.linspace(0.1, 0.5, BARS)
    x[:, :, :100] += (trend[:, None, None] * strength[:, None] * loadings).astype(np.float32)
    x[:, :, VOLUME_COLUMNS] = relative_volume(rng, count)
    outcome = trend + 0.25 * rng.normal(size=count)
    labels = np.digitize(outcome, [-1.2, 1.2])
    np.savez(path, x=x, y=labels)
    return path


def relative_volume(rng: np.random.Generator, count: int) -> np.ndarray:
    """Volume of each bar over the median of the bars before it, for each of the windows."""
    is_thin = rng.random(count) < 0.02
    usual = np.where(is_thin, 1.0, 4000.0)[:, None]
    lots = np.ceil(usual * rng.lognormal(0.0, 0.4, size=(count, BARS + max(WINDOWS))))
    has_block = rng.random(lots.shape) < 0.002
    lots = np.where(has_block, lots + rng.lognormal(11.8, 0.3, size=lots.shape), lots)
    columns = []
    for window in WINDOWS:
        past = np.lib.stride_tricks.sliding_window_view(lots, window, axis=1)
        median = np.median(past, axis=-1)[:, -BARS - 1 : -1]
        columns.append(lots[:, -BARS:] / np.maximum(median, 1.0))
    return np.stack(columns, axis=-1).astype(np.float32)


class Sequences(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, path: Path, log_volume: bool = False) -> None:
        with np.load(path) as file:
            self.x, self.y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
        if log_volume:
            self.x[..., VOLUME_COLUMNS] = self.x[..., VOLUME_COLUMNS].log1p()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]

    def class_weights(self) -> torch.Tensor:
        """Inverse frequency, one on average."""
        counts = torch.bincount(self.y, minlength=CLASSES).float()
        return len(self.y) / (CLASSES * counts)
