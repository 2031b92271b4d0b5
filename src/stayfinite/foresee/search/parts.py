"""Determines the role of each tensor of a batch from its dtype, name and seen values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...runtime.batches import named_tensors
from ...runtime.rows import map_tensors, num_rows
from .padding import padding_of

__all__ = ["Part", "change", "is_rotation", "is_unit", "part_of", "parts_of"]

_TARGET = re.compile(r"(label|target|\by\b|_y\b|\['y'\])", re.IGNORECASE)
_MASK = re.compile(r"mask|valid|legal|allowed", re.IGNORECASE)
_LENGTH = re.compile(r"len|size|count", re.IGNORECASE)
_MOST_VALUES = 200_000
_SPREADS = 10.0
"""Values are assumed to lie within so many times the distance from the median to the largest seen one."""
_FEW = 2.0
_NEAR = 0.25
"""A count this small, or this share of the usual one, makes 0 possible."""
_DOWN_TO_ZERO = 0.02
"""If amounts down to this share of the usual one were seen, 0 is possible."""
_LOWER = 0.1
"""Several values must be below this share of the usual one, so that the smallest is no exception."""
_LONG_TAIL = 20.0
"""If values exceed the usual one by this factor, it is a product of many factors: small at times, never 0."""
_STEPS = (0.1, 0.01)
_FEWEST_ON_GRID = 3
_LARGEST_ON_GRID = 2000.0
"""Above this, float32 does not represent hundredths exactly enough."""
_VECTOR = 8
"""Up to so many numbers are a vector (a direction, a pose, an offset); more are a signal."""
_EXACT = 2.0**24
"""Every float32 above this is a whole number."""


@dataclass(frozen=True)
class Part:
    """One tensor of the batch, with statistics of its values in all seen batches."""

    name: str
    tensor: Tensor
    kind: str
    """input | target | mask | labels | lengths | tokens"""
    low: float = 0.0
    high: float = 0.0
    is_whole: bool = False
    """Floats that hold whole numbers only: counts, ratings, indices."""
    padding: int | None = None
    """The token that fills up short sequences."""
    has_rows: bool = True
    """Its first dimension is the sample's."""
    num_values: int = 0
    """How many different values were seen; counted up to 32."""
    is_distribution: bool = False
    """Every row adds up to 1: a distribution, a one-hot code."""
    middle: float = 0.0
    """The median."""
    zero_share: float = 0.0
    """The share of seen values that are exactly 0."""

    grid: float = 0.0
    """The step that all values are multiples of (0.01, 0.1, 10); 0 if there is none."""
    nears_zero: bool = False
    """Positive, and spread evenly down to nearly 0: a share, a waiting time."""

    @property
    def is_float(self) -> bool:
        return self.tensor.is_floating_point()

    @property
    def is_bounded(self) -> bool:
        """Within [0, 1] or [-1, 1], close to both ends: a probability, a pixel, a clipped value."""
        return (0 <= self.low < 0.1 and 0.9 < self.high <= 1) or (
            -1 <= self.low < -0.9 and 0.9 < self.high <= 1
        )

    @property
    def is_narrow(self) -> bool:
        """Strictly positive, and none far above the median: a quantity of a known size."""
        return self.low > 0 and self.high <= 3 * self.middle

    @property
    def is_tight(self) -> bool:
        """Strictly positive and hardly varying, so that three times as large is implausible."""
        return self.low > 0 and 3 * self.high - self.middle > _SPREADS * (self.high - self.middle)

    @property
    def is_skewed(self) -> bool:
        """Positive, with some far above the median: amounts with a long tail."""
        return self.low >= 0 and self.tensor.dim() > 1 and self.high > 3 * self.middle > 0

    @property
    def is_permutation(self) -> bool:
        """Every row is a permutation of the same numbers: a tour, a ranking."""
        t = self.tensor
        if self.is_float or t.dtype == torch.bool or t.dim() != 2 or min(t.shape) < 2:
            return False
        rows = t.sort(1).values
        return bool((rows == rows[:1]).all()) and bool((rows[0].diff() > 0).all())

    @property
    def is_unit(self) -> bool:
        return is_unit(self.tensor)

    @property
    def is_rotation(self) -> bool:
        return is_rotation(self.tensor)

    @property
    def is_positive(self) -> bool:
        return self.low >= 0

    @property
    def is_code(self) -> bool:
        """A few whole numbers, or a distribution, whose values are related."""
        is_few = self.is_whole and self.num_values <= 5 and self.tensor.dim() > 1
        return self.is_float and (is_few or self.is_distribution)

    @property
    def may_be_zero(self) -> bool:
        """An exact zero fits what was seen: on both sides of it, or at the lower end of its range.

        A count fits where small ones were seen: one that was never below 7 will not be 0. So does an amount
        in cents where one or two cents were seen.
        """
        is_count = self.is_whole and self.low <= max(_FEW, _NEAR * self.middle)
        is_amount = self.low <= _FEW * self.grid
        return self.low <= 0 or is_count or is_amount or self.is_bounded or self.nears_zero

    @property
    def may_concentrate(self) -> bool:
        """A distribution some of whose shares were next to nothing: one of them may be 0, or all the rest."""
        return self.is_distribution and self.low < _DOWN_TO_ZERO * self.middle

    @property
    def may_rest(self) -> bool:
        """A signal may be silent; a target of both signs that was never 0 anywhere is not all 0 at once."""
        is_vector = self.kind == "target" and self.tensor[0].numel() <= _VECTOR
        return self.is_positive or self.has_zero or not is_vector

    @property
    def has_zero(self) -> bool:
        """An exact zero was seen."""
        return self.zero_share > 0

    @property
    def peak(self) -> float:
        return max(abs(self.low), abs(self.high))


def parts_of(batches: Sequence[Any]) -> list[Part]:
    """The probable role of each tensor of the first batch.

    >>> x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    >>> [(p.name, p.kind) for p in parts_of([(x, y)])]
    [('batch[0]', 'input'), ('batch[1]', 'labels')]
    """
    named = [
        (n, t)
        for n, t in named_tensors(batches[0])
        if t.numel() and t.layout is torch.strided and not t.is_complex()
    ]
    total = num_rows(batches[0])
    last = named[-1][0] if len(named) > 1 else None
    widths = _widths(batches[0])
    found = []
    for name, t in named:
        values = _values(name, batches)
        may_be_lengths = _fits_lengths(name, t, total, batches)
        kind = _kind(name, t, values, widths if may_be_lengths else [], name == last)
        padding = padding_of(name, batches) if kind == "tokens" else None
        has_rows = total is not None and t.dim() > 0 and t.shape[0] == total
        found.append(part_of(name, t, kind, values, padding, has_rows))
    return found


def part_of(
    name: str,
    t: Tensor,
    kind: str,
    values: Tensor,
    padding: int | None = None,
    has_rows: bool = True,
) -> Part:
    """The part for one tensor of the first batch, from its values in all batches (as float64)."""
    is_any, is_float = values.numel() > 0, t.is_floating_point()
    low = float(values.min()) if is_any else 0.0
    is_whole = is_float and bool(((values == values.round()) & (values.abs() < _EXACT)).all())
    return Part(
        name, t, kind, low, float(values.max()) if is_any else 0.0, is_whole, padding, has_rows,
        min(int(values[:20_000].unique().numel()), 32), _is_distribution(t),
        float(values.median()) if is_any else 0.0,
        float((values == 0).double().mean()) if is_any else 0.0,
        _grid(values, is_whole) if is_float and low > 0 else 0.0,
        is_float and low > 0 and _nears_zero(values),
    )  # fmt: skip


def is_unit(t: Tensor) -> bool:
    """Vectors of length 1: directions, quaternions."""
    if not t.is_floating_point() or t.dim() < 2 or not 2 <= t.shape[-1] <= 8:
        return False
    return bool(((t.detach().float().norm(dim=-1) - 1).abs() < 1e-2).all())


def is_rotation(t: Tensor) -> bool:
    """Square matrices whose rows are orthogonal and of length 1."""
    if not t.is_floating_point() or t.dim() < 3 or t.shape[-1] != t.shape[-2] or t.shape[-1] > 4:
        return False
    square = t.detach().float() @ t.detach().float().mT
    return bool(((square - torch.eye(t.shape[-1], device=t.device)).abs() < 1e-2).all())


def _grid(values: Tensor, is_whole: bool = False) -> float:
    """The step that all of these values are multiples of; 0 where they lie on none.

    >>> _grid(torch.tensor([0.01, 0.25, 3.99], dtype=torch.float64)), _grid(torch.rand(9))
    (0.01, 0.0)
    >>> _grid(torch.tensor([10.0, 30, 20, 40, 70]), True), _grid(torch.tensor([256.0, 512]), True)
    (10.0, 0.0)
    """
    if values.numel() < _FEWEST_ON_GRID or float(values.max()) > _LARGEST_ON_GRID:
        return 0.0
    if is_whole:
        return _whole_grid([int(v) for v in values.unique()])
    for step in _STEPS:
        off = ((values / step).round() * step - values).abs()
        if bool((off < step / 1000 + 1.2e-7 * values).all()):
            return step
    return 0.0


def _whole_grid(values: list[int]) -> float:
    """A step of whole numbers, where most of its multiples in their range were seen."""
    step = math.gcd(*values)
    num_steps = (values[-1] - values[0]) // step + 1
    return float(step) if len(values) > max(_FEWEST_ON_GRID, num_steps // 2) else 0.0


def _nears_zero(values: Tensor) -> bool:
    """Whether these positive values come down to next to nothing, without a floor that some of them share.

    >>> x = torch.linspace(0.01, 3, 200, dtype=torch.float64)
    >>> _nears_zero(x), _nears_zero(x.clamp(min=0.03)), _nears_zero(x.pow(5)), _nears_zero(x + 1)
    (True, False, False, False)
    """
    if values.numel() < _FEWEST_ON_GRID:
        return False
    usual = float(values.median())
    low, second, third = (float(values.kthvalue(k).values) for k in (1, 2, 3))
    is_near = low < _DOWN_TO_ZERO * usual and third < _LOWER * usual
    return is_near and second > low and float(values.max()) < _LONG_TAIL * usual


def _is_distribution(t: Tensor) -> bool:
    if not t.is_floating_point() or t.dim() < 2 or t.shape[-1] < 2 or bool((t < 0).any()):
        return False
    return bool(((t.detach().float().sum(-1) - 1).abs() < 1e-2).all())


def _values(name: str, batches: Sequence[Any]) -> Tensor:
    """All finite values of this part that were seen."""
    found = []
    left = _MOST_VALUES
    for batch in batches:
        for n, t in named_tensors(batch):
            if n == name and t.layout is torch.strided and left > 0:
                flat = t.detach().reshape(-1)[:left].to("cpu", torch.float64)
                found.append(flat[torch.isfinite(flat)])
                left -= flat.numel()
    return torch.cat(found) if found else torch.empty(0)


def _kind(name: str, t: Tensor, values: Tensor, widths: list[int], is_last: bool) -> str:
    """`widths`: the sizes that lengths may refer to; empty if it cannot be lengths."""
    is_binary = bool(((values == 0) | (values == 1)).all())
    if t.dtype == torch.bool or (t.dim() > 1 and is_binary and (0 in values or _MASK.search(name))):
        return "mask"
    is_target = is_last or bool(_TARGET.search(name))
    if t.is_floating_point():
        return "target" if is_target else "input"
    # Class numbers rarely reach exactly the width of another tensor; lengths do.
    if widths:
        named = bool(_LENGTH.search(name.partition("[")[2] or name))
        if named or not is_target or int(values.max()) in widths:
            return "lengths"
    return "labels" if is_target else "tokens"


def _widths(batch: Any) -> list[int]:
    """The sizes that sequences of this batch may have."""
    total = num_rows(batch)
    wide = [t for _, t in named_tensors(batch) if t.dim() > 1]
    return [t.shape[1] for t in wide] + [t.shape[0] for t in wide if t.shape[0] != total]


def _fits_lengths(name: str, t: Tensor, total: int | None, batches: Sequence[Any]) -> bool:
    """Whole numbers from 1 on, one a sample, none above the width of its own batch."""
    if t.is_floating_point() or t.dim() != 1 or (total is not None and t.shape[0] != total):
        return False
    for batch in batches:
        values = next((v for n, v in named_tensors(batch) if n == name and v.numel()), None)
        if values is None:
            continue
        widths = _widths(batch)
        if not widths or int(values.min()) < 1 or int(values.max()) > max(widths):
            return False
    return True


def change(batch: Any, parts: Sequence[Part], how: Callable[[Tensor], Tensor]) -> Any:
    """A copy of the batch with these tensors changed."""
    new = {id(p.tensor): how(p.tensor.detach()).to(p.tensor.dtype) for p in parts}
    return map_tensors(batch, lambda t: new.get(id(t), t))
