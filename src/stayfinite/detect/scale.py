"""Distinguishes a GradScaler's normal skips from a loss scale that keeps falling."""

from __future__ import annotations

__all__ = ["ScaleWatch"]

_LOOKS = 8
_FLOOR = 2.0**-10
"""A smaller scale has collapsed."""


class ScaleWatch:
    """Distinguishes a scale collapse from normal skips.

    >>> watch = ScaleWatch(limit=3)
    >>> [watch.note_skip(s) for s in (4.0, 2.0, 1.0)]
    [False, False, True]
    >>> watch.note_applied()
    >>> watch.note_skip(4.0)
    False
    """

    def __init__(self, limit: int = 20) -> None:
        self.limit = limit
        self.num_in_a_row = 0

    def note_skip(self, scale: float) -> bool:
        """Note a skip at this scale; True if the scale has collapsed."""
        self.num_in_a_row += 1
        return self.num_in_a_row >= self.limit or scale <= _FLOOR

    def passes_by(self, scale: float) -> bool:
        """Whether a skip needs no investigation: a few were investigated, and the limit is not reached."""
        is_normal_skip = _LOOKS <= self.num_in_a_row < self.limit - 1 and scale > _FLOOR
        if is_normal_skip:
            self.num_in_a_row += 1
        return is_normal_skip

    def note_applied(self) -> None:
        self.num_in_a_row = 0
