"""Computes what a failure would cost with the training's save and evaluation intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..records import Finding, passed, warned
from .gather import Reading

__all__ = ["cost_of_failure"]

_GROUP = "config"
_LARGE = 0.5
"""The share of the run between two saves from which on a failure costs most of it."""


def cost_of_failure(readings: Iterable[Reading]) -> Iterator[Finding]:
    """How many steps are lost with the last checkpoint, and unseen since the last evaluation.

    >>> found = cost_of_failure([Reading("save_every", 40, "save_every"), Reading("total_steps", 160, "")])
    >>> [f.value for f in found]
    ['a failure costs up to 40 steps: 25 % of the run']
    """
    by_quantity: dict[str, list[Reading]] = {}
    for reading in readings:
        by_quantity.setdefault(reading.quantity, []).append(reading)
    total = max((r.value for r in by_quantity.get("total_steps", [])), default=0.0)
    for quantity, words in (
        ("save_every", "a failure costs up to {n:,.0f} steps"),
        ("eval_every", "a model that gets worse is seen up to {n:,.0f} steps late"),
    ):
        for reading in by_quantity.get(quantity, []):
            yield _judged(quantity, reading, words.format(n=reading.value), total)


def _judged(quantity: str, reading: Reading, words: str, total: float) -> Finding:
    check = "config/save-every" if quantity == "save_every" else "config/eval-every"
    share = reading.value / total if total > 0 else 0.0
    if total > 0:
        words += f": {min(share, 1):.0%} of the run".replace("%", " %")
    data = {"steps": reading.value, "total": total}
    if reading.value > 0 and share < _LARGE:
        return passed(_GROUP, check, words, subject=reading.subject, data=data)
    if reading.value <= 0:
        words = f"{reading.value:g} is no interval"
    action = (
        f"set {max(int(total * 0.1), 1) if total else 1000:,}, or every 1,000 steps of a long run"
    )
    return warned(_GROUP, check, words, action, subject=reading.subject, data=data)
