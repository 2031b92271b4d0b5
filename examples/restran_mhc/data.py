"""Rendered license plates: seven characters, several frames of each, as a passing camera sees them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LENGTH = 7  # letters and digits as LLLNLNN
HEIGHT, WIDTH, FRAMES = 16, 104, 3

# One character is seven rows of five dots, a row is the number that its dots make.
GLYPHS = {
    "0": (14, 17, 19, 21, 25, 17, 14),
    "1": (4, 12, 4, 4, 4, 4, 14),
    "2": (14, 17, 1, 6, 8, 16, 31),
    "3": (30, 1, 1, 14, 1, 1, 30),
    "4": (2, 6, 10, 18, 31, 2, 2),
    "5": (31, 16, 30, 1, 1, 17, 14),
    "6": (6, 8, 16, 30, 17, 17, 14),
    "7": (31, 1, 2, 4, 8, 8, 8),
    "8": (14, 17, 17, 14, 17, 17, 14),
    "9": (14, 17, 17, 15, 1, 2, 12),
    "A": (4, 10, 17, 17, 31, 17, 17),
    "B": (30, 17, 17, 30, 17, 17, 30),
    "C": (14, 17, 16, 16, 16, 17, 14),
    "D": (28, 18, 17, 17, 17, 18, 28),
    "E": (31, 16, 16, 30, 16, 16, 31),
    "F": (31, 16, 16, 30, 16, 16, 16),
    "G": (14, 17, 16, 23, 17, 17, 15),
    "H": (17, 17, 17, 31, 17, 17, 17),
    "I": (31, 4, 4, 4, 4, 4, 31),
    "J": (7, 2, 2, 2, 2, 18, 12),
    "K": (17, 18, 20, 24, 20, 18, 17),
    "L": (16, 16, 16, 16, 16, 16, 31),
    "M": (17, 27, 21, 21, 17, 17, 17),
    "N": (17, 25, 21, 21, 19, 17, 17),
    "O": (14, 17, 17, 17, 17, 17, 14),
    "P": (30, 17, 17, 30, 16, 16, 16),
    "Q": (14, 17, 17, 17, 21, 18, 13),
    "R": (30, 17, 17, 30, 20, 18, 17),
    "S": (15, 16, 16, 14, 1, 1, 30),
    "T": (31, 4, 4, 4, 4, 4, 4),
    "U": (17, 17, 17, 17, 17, 17, 14),
    "V": (17, 17, 17, 17, 17, 10, 4),
    "W": (17, 17, 17, 21, 21, 27, 17),
    "X": (17, 17, 10, 4, 10, 17, 17),
    "Y": (17, 17, 10, 4, 4, 4, 4),
    "Z": (31, 1, 2, 4, 8, 16, 31),
}


def glyph(character: str) -> np.ndarray:
    rows = [[row >> shift & 1 for shift in range(4, -1, -1)] for row in GLYPHS[character]]
    return np.kron(np.array(rows, dtype=np.float32), np.ones((2, 2), dtype=np.float32))


def draw(text: str) -> np.ndarray:
    """The plate as it is: ink 1 on ground 0."""
    plate = np.zeros((HEIGHT, WIDTH), dtype=np.float32)
    for place, character in enumerate(text):
        left = 5 + 14 * place
        plate[1:15, left : left + 10] = glyph(character)
    return plate


def frame(plate: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    """One shot of it: moved, blurred, unevenly lit, noisy."""
    moved = np.roll(plate, (int(rng.integers(-1, 2)), int(rng.integers(-2, 3))), axis=(0, 1))
    beside = (np.roll(moved, 1, axis=1) + np.roll(moved, -1, axis=1)) / 2
    blur = rng.uniform(0.0, 0.5)
    light = rng.uniform(0.6, 1.0) + rng.uniform(-0.2, 0.2) * np.linspace(-1, 1, WIDTH)
    shot = (0.1 + 0.8 * ((1 - blur) * moved + blur * beside)) * light
    return np.clip(shot + rng.normal(0.0, noise, shot.shape), 0.0, 1.0).astype(np.float32)


def write_plates(path: Path, count: int, noise: float, seed: int) -> None:
    """`count` plates, each in several frames, as bytes in one file."""
    rng = np.random.default_rng(seed)
    digits, letters = ALPHABET[:10], ALPHABET[10:]
    frames = np.empty((count, FRAMES, HEIGHT, WIDTH), dtype=np.uint8)
    texts = []
    for i in range(count):
        kinds = (letters, letters, letters, digits, letters, digits, digits)
        texts.append("".join(kind[rng.integers(len(kind))] for kind in kinds))
        plate = draw(texts[-1])
        for k in range(FRAMES):
            frames[i, k] = np.round(255 * frame(plate, noise, rng))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, frames=frames, texts=np.array(texts))


class Plates(Dataset):
    """Frames in [-1, 1] and the text as class numbers; class 0 is the blank of CTC."""

    def __init__(self, path: Path, augmentation: str = "none") -> None:
        with np.load(path) as file:
            self.frames = torch.from_numpy(file["frames"])
            self.texts = [str(text) for text in file["texts"]]
        codes = [[ALPHABET.index(c) + 1 for c in text] for text in self.texts]
        self.targets = torch.tensor(codes)
        self.augmentation = augmentation

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.frames[index].float() / 127.5 - 1.0
        if self.augmentation != "none":
            strength = {"light": 0.1, "full": 0.3}[self.augmentation]
            contrast = 1 + strength * (2 * torch.rand(FRAMES, 1, 1) - 1)
            x = x * contrast + strength * torch.randn(FRAMES, 1, 1)
        return x, self.targets[index]


def rarity(data: Plates) -> torch.Tensor:
    """A sampling weight for each plate: the more, the rarer its characters are."""
    counts = torch.bincount(data.targets.flatten(), minlength=len(ALPHABET) + 1).clamp(min=1)
    return (1.0 / counts)[data.targets].amax(dim=1)
