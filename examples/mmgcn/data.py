"""A small catalog of clips with pictures, sound and captions, and who watched what.

Nothing is downloaded. Clips have a hidden subject and a popularity that follows a power law; people
watch what is popular and what is about their subjects. The three feature tables are noisy views of
the subject, as a picture, a sound and a text encoder would give.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

USERS, ITEMS, SUBJECTS = 240, 160, 6
WIDTHS = {"visual": 48, "acoustic": 16, "textual": 32}
NOISE = {"visual": 1.0, "acoustic": 1.6, "textual": 0.8}


@dataclass(frozen=True)
class Interactions:
    """Who watched what, split into the past (train) and what came after (test)."""

    train: torch.Tensor
    """[n, 2] pairs of user and item."""
    test: list[set[int]]
    """For each user, the items that were held back."""
    features: dict[str, torch.Tensor]

    def watched(self) -> list[set[int]]:
        """For each user, the items of the training part."""
        sets: list[set[int]] = [set() for _ in range(USERS)]
        for user, item in self.train.tolist():
            sets[user].add(item)
        return sets


def generate(folder: Path, seed: int = 7) -> Path:
    """Write the catalog into `folder` and return the file; an existing one is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"catalog-{seed}.npz"
    if path.exists():
        return path
    rng = np.random.default_rng(seed)
    subject = rng.integers(SUBJECTS, size=ITEMS)
    popularity = (1 + np.arange(ITEMS)) ** -0.7
    rng.shuffle(popularity)
    taste = rng.dirichlet(np.full(SUBJECTS, 0.1), size=USERS)
    counts = 6 + rng.geometric(0.12, size=USERS).clip(max=60)
    pairs, is_test = [], []
    for user in range(USERS):
        wish = popularity * (0.02 + taste[user, subject])
        items = rng.choice(ITEMS, size=counts[user], replace=False, p=wish / wish.sum())
        held_back = max(1, counts[user] // 5)
        pairs += [(user, item) for item in items]
        is_test += [False] * (counts[user] - held_back) + [True] * held_back
    centers = {m: rng.normal(size=(SUBJECTS, w)) for m, w in WIDTHS.items()}
    tables = {
        m: (centers[m][subject] + NOISE[m] * rng.normal(size=(ITEMS, w))).astype(np.float32)
        for m, w in WIDTHS.items()
    }
    np.savez(path, pairs=np.array(pairs), is_test=np.array(is_test), **tables)
    return path


def load(path: Path) -> Interactions:
    with np.load(path) as file:
        pairs, is_test = torch.from_numpy(file["pairs"]), torch.from_numpy(file["is_test"])
        features = {m: torch.from_numpy(file[m]) for m in WIDTHS}
    test: list[set[int]] = [set() for _ in range(USERS)]
    for user, item in pairs[is_test].tolist():
        test[user].add(item)
    return Interactions(pairs[~is_test], test, features)


class Triples(Dataset[torch.Tensor]):
    """(user, a clip that they watched, a clip that they did not), drawn once for each pair."""

    def __init__(self, interactions: Interactions, seed: int) -> None:
        rng = np.random.default_rng(seed)
        watched = interactions.watched()
        rows = []
        for user, item in interactions.train.tolist():
            other = int(rng.integers(ITEMS))
            while other in watched[user]:
                other = int(rng.integers(ITEMS))
            rows.append((user, item, other))
        self.rows = torch.tensor(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]
