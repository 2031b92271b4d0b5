"""What kind of change a candidate is: how it has to be judged depends on it."""

from __future__ import annotations

from ..remedies import Candidate

__all__ = ["is_equivalent", "is_flat", "is_shift", "room_of"]

_JITTER = 0.02


def is_equivalent(made: tuple[Candidate, ...]) -> bool:
    """Whether all of it computes what was computed before, wherever that was finite."""
    return all(r.is_equivalent for c in made for r in c.remedies)


def is_flat(made: tuple[Candidate, ...]) -> bool:
    """Below a floor there is no gradient."""
    return any(r.name.startswith("floor_") for c in made for r in c.remedies)


def room_of(made: tuple[Candidate, ...]) -> float:
    """What is added to a matrix is felt by every matrix, a little."""
    return _JITTER if any(r.name.startswith("jitter") for c in made for r in c.remedies) else 0.0


def is_shift(made: tuple[Candidate, ...]) -> bool:
    """What is taken off every exponential has to cancel out."""
    return any(r.name.startswith("shift_") for c in made for r in c.remedies)
