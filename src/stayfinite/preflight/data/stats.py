"""Streaming statistics of the samples in bounded memory."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["BadSample", "PartStats"]

_MAX_FEATURES = 4096
_MAX_CHANNELS = 16
_MAX_CLASSES = 10_000
_MAX_SHAPES = 64
_MAX_BAD = 16
_RESERVOIR = 64
_MIN_ROWS = 2


@dataclass(frozen=True)
class BadSample:
    """A sample with a NaN or Inf: which, in which feature, what."""

    index: int
    feature: int
    kind: str
    """nan | inf | -inf"""


@dataclass
class PartStats:
    """What is known of one part ("sample[0]") of all samples so far."""

    name: str
    is_float: bool = True
    dtype: str = ""
    num_samples: int = 0
    shapes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    shape_example: dict[tuple[int, ...], int] = field(default_factory=dict)
    """For each shape the first sample that has it."""
    num_nan: int = 0
    num_inf: int = 0
    num_bad_samples: int = 0
    bad: list[BadSample] = field(default_factory=list)
    count: Tensor | None = None
    """How many finite values each feature has."""
    low: Tensor | None = None
    high: Tensor | None = None
    high_at: Tensor | None = None
    """The sample with the largest magnitude, for each feature."""
    low_int: int | None = None
    low_at: int = -1
    high_int: int | None = None
    high_int_at: int = -1
    classes: Counter[int] = field(default_factory=Counter)
    first_of_class: dict[int, int] = field(default_factory=dict)
    has_all_classes: bool = True
    """False once there were too many different values to be classes."""
    is_sorted: bool = True
    _last: int | None = None
    _reservoir: Tensor | None = None
    _num_offered: int = 0
    _generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    @property
    def num_features(self) -> int:
        return self.count.numel() if self.count is not None else 0

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape that most samples have."""
        return self.shapes.most_common(1)[0][0] if self.shapes else ()

    @property
    def abs_max(self) -> float:
        if self.low is None or self.high is None:
            return 0.0
        return max(float(self.high.max()), -float(self.low.min()))

    @torch.no_grad()
    def update(self, block: Tensor, indices: Tensor) -> None:
        """Samples of one shape: `block[i]` is this part of sample `indices[i]`."""
        shape = tuple(block.shape[1:])
        if shape in self.shapes or len(self.shapes) < _MAX_SHAPES:
            self.shapes[shape] += len(block)
            self.shape_example.setdefault(shape, int(indices[0]))
        self.num_samples += len(block)
        self.dtype = self.dtype or str(block.dtype).removeprefix("torch.")
        self.is_float = block.is_floating_point()
        if block.numel() == 0:
            return
        if self.is_float:
            self._update_floats(_by_feature(block), indices)
        elif not block.is_complex():
            self._update_integers(block.reshape(len(block), -1), indices)

    def _update_floats(self, rows: Tensor, indices: Tensor) -> None:
        """`rows` is (samples, places, features)."""
        rows = rows.double()
        num_features = rows.shape[2]
        if self.count is None:
            self._start(num_features)
        elif num_features != self.num_features:
            # Samples of different widths have no features in common: one feature for all.
            self._merge_features()
            rows = rows.reshape(len(rows), -1, 1) if self.num_features == 1 else rows
        finite = torch.isfinite(rows)
        if not bool(finite.all()):
            self._note_bad(rows, finite, indices)
        self._fold(rows, finite)
        self._note_extremes(rows, finite, indices)
        self._sample(rows, finite)

    def _start(self, num_features: int) -> None:
        zeros = torch.zeros(num_features, dtype=torch.float64)
        self.count = zeros.clone()
        self.low, self.high = zeros + math.inf, zeros - math.inf
        self.high_at = torch.full((num_features,), -1, dtype=torch.long)
        self._reservoir = torch.zeros(0, num_features, dtype=torch.float64)

    def _merge_features(self) -> None:
        if self.num_features == 1 or self.count is None:
            return
        low, high = self.low, self.high
        assert low is not None and high is not None
        where = int(torch.maximum(high, -low).argmax())
        self.count = self.count.sum().clamp(min=1).view(1)
        self.low, self.high = low.min().view(1), high.max().view(1)
        assert self.high_at is not None and self._reservoir is not None
        self.high_at = self.high_at[where].view(1)
        self._reservoir = self._reservoir.reshape(-1, 1)[:_RESERVOIR]

    def _fold(self, rows: Tensor, finite: Tensor) -> None:
        """Count the finite values, and widen the range."""
        assert self.count is not None
        assert self.low is not None and self.high is not None
        flat, good = rows.flatten(0, 1), finite.flatten(0, 1)
        self.count = self.count + good.sum(0).double()
        self.low = torch.minimum(self.low, flat.masked_fill(~good, math.inf).amin(0))
        self.high = torch.maximum(self.high, flat.masked_fill(~good, -math.inf).amax(0))

    def _note_extremes(self, rows: Tensor, finite: Tensor, indices: Tensor) -> None:
        assert self.low is not None and self.high is not None and self.high_at is not None
        size = rows.abs().masked_fill(~finite, -1.0).amax(1)  # (samples, features)
        top, who = size.max(0)
        known = torch.maximum(self.high, -self.low)
        is_new = (top >= known) & (top >= 0)
        self.high_at = torch.where(is_new, indices[who], self.high_at)

    def _note_bad(self, rows: Tensor, finite: Tensor, indices: Tensor) -> None:
        nan = torch.isnan(rows)
        self.num_nan += int(nan.sum())
        self.num_inf += int((~finite & ~nan).sum())
        hit = (~finite).flatten(1).any(1)
        self.num_bad_samples += int(hit.sum())
        for row in torch.nonzero(hit).flatten().tolist():
            if len(self.bad) >= _MAX_BAD:
                return
            place, feature = torch.nonzero(~finite[row])[0].tolist()
            value = float(rows[row, place, feature])
            self.bad.append(BadSample(int(indices[row]), feature, str(value)))

    def _sample(self, rows: Tensor, finite: Tensor) -> None:
        """A sample of values of every feature, for a robust scale."""
        assert self._reservoir is not None
        values = torch.where(finite[:, 0, :], rows[:, 0, :].abs(), 0.0)
        room = _RESERVOIR - len(self._reservoir)
        if room > 0:
            self._reservoir = torch.cat([self._reservoir, values[:room]])
            self._num_offered += min(room, len(values))
            values = values[room:]
        seen = self._num_offered + 1 + torch.arange(len(values))
        places = (torch.rand(len(values), generator=self._generator) * seen).long()
        self._num_offered += len(values)
        for i in torch.nonzero(places < _RESERVOIR).flatten().tolist():
            self._reservoir[places[i]] = values[i]

    def typical_size(self) -> Tensor | None:
        """The 90 % quantile of the magnitude of each feature, of a few samples."""
        if self._reservoir is None or len(self._reservoir) < 8:
            return None
        return torch.quantile(self._reservoir, 0.9, dim=0)

    def constant_features(self) -> list[int]:
        """Features that have the same value everywhere."""
        if self.low is None or self.high is None or self.count is None:
            return []
        if self.num_samples < _MIN_ROWS:
            return []
        same = (self.low == self.high) & (self.count >= _MIN_ROWS)
        return [int(i) for i in torch.nonzero(same).flatten()]

    def _update_integers(self, rows: Tensor, indices: Tensor) -> None:
        rows = rows.long()
        low, high = rows.amin(1), rows.amax(1)
        if self.low_int is None or int(low.min()) < self.low_int:
            self.low_int, self.low_at = int(low.min()), int(indices[int(low.argmin())])
        if self.high_int is None or int(high.max()) > self.high_int:
            self.high_int, self.high_int_at = int(high.max()), int(indices[int(high.argmax())])
        if rows.shape[1] == 1:
            values = rows.flatten()
            self._note_order(values)
            self._count_classes(values, indices)

    def _note_order(self, values: Tensor) -> None:
        first = self._last if self._last is not None else int(values[0])
        self.is_sorted = self.is_sorted and int(values[0]) >= first
        self.is_sorted = self.is_sorted and bool((values[1:] >= values[:-1]).all())
        self._last = int(values[-1])

    def _count_classes(self, values: Tensor, indices: Tensor) -> None:
        if not self.has_all_classes:
            return
        found, counts = values.unique(return_counts=True)
        for value, count in zip(found.tolist(), counts.tolist()):
            self.classes[value] += count
            if value not in self.first_of_class:
                where = int(torch.nonzero(values == value)[0])
                self.first_of_class[value] = int(indices[where])
        if len(self.classes) > _MAX_CLASSES:
            self.has_all_classes = False
            self.classes.clear()
            self.first_of_class.clear()


def _by_feature(block: Tensor) -> Tensor:
    """(samples, places, features): what a feature is depends on the shape of a sample.

    One dimension: every element. Two (time, features): the last. Three and more: channels, which
    are the shorter of the first and the last.
    """
    n = len(block)
    if block.dim() == 1:
        return block.view(n, 1, 1)
    if block.dim() in (2, 3) and block.shape[-1] <= _MAX_FEATURES:
        return block.reshape(n, -1, block.shape[-1])
    if block.dim() >= 4 and min(block.shape[1], block.shape[-1]) <= _MAX_CHANNELS:
        if block.shape[1] <= block.shape[-1]:
            block = block.movedim(1, -1)
        return block.reshape(n, -1, block.shape[-1])
    return block.reshape(n, -1, 1)
