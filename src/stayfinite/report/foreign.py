"""Recognizes loss, step and gradient norm in other tools' JSONL logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UsageError
from .curves import as_number

__all__ = ["FIELDS", "KeyMap"]

FIELDS: dict[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "iteration", "iter", "_step", "num_updates", "batch", "it"),
    "epoch": ("epoch", "ep"),
    "loss": ("loss", "train_loss", "total_loss", "training_loss", "loss_total", "l"),
    "grad_norm": ("grad_norm", "gradient_norm", "gnorm", "total_norm", "norm", "grad_norm_total"),
    "lr": ("lr", "learning_rate", "lr_0"),
    "scale": ("scale", "loss_scale", "grad_scale", "amp_scale"),
    "ms": ("ms", "step_ms", "step_time_ms"),
}
_MAX_STEP = 1 << 53
_MAX_KEYS = 10_000
_PREFIXES = ("", "train/", "train_", "training/", "train.", "metrics/")


class KeyMap:
    """Finds the fields by their usual names; explicit mappings come first.

    >>> keys = KeyMap({"loss": "objective"})
    >>> keys.row({"train/global_step": 7, "objective": 0.5, "text_loss": 0.2, "note": "x"}, 1)
    {'step': 7, 'loss': 0.5, 'parts': {'text_loss': 0.2}}
    """

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self.given = dict(given or {})
        wrong = sorted(set(self.given) - set(FIELDS))
        if wrong:
            raise UsageError(
                f"unknown field {', '.join(map(repr, wrong))} in the key map; "
                f"fields: {', '.join(FIELDS)}"
            )
        self.found: dict[str, str] = {}
        self.has_bad_step = False
        """Whether the last line had an impossible step, so that it is omitted."""
        self._known: dict[str, str] = {}
        self._order = {
            prefix + alias: (field, rank)
            for field, aliases in FIELDS.items()
            for rank, (alias, prefix) in enumerate((a, p) for a in aliases for p in _PREFIXES)
        }

    @classmethod
    def parse(cls, pairs: Iterable[str]) -> KeyMap:
        """Parse `field=key` arguments.

        >>> KeyMap.parse(["loss=train/total"]).given
        {'loss': 'train/total'}
        """
        given = {}
        for pair in pairs:
            field, separator, key = pair.partition("=")
            if not separator or not key:
                raise UsageError(f"a key map is written field=key, as in loss=total, got {pair!r}")
            given[field] = key
        return cls(given)

    def row(self, line: Mapping[str, Any], number: int) -> dict[str, Any] | None:
        """Convert a line to a step line; None if it has no known number."""
        row: dict[str, Any] = {"step": number}
        self.has_bad_step = False
        parts: dict[str, float] = {}
        for key, value in line.items():
            field = self._known.get(key)
            if field is None:
                if len(self._known) >= _MAX_KEYS:
                    continue  # a log whose keys never repeat is not a training log
                field = self._known[key] = self._field(key)
            if not field:
                continue
            figure = as_number(value)
            if figure is None:
                continue
            if field == "parts":
                parts[key] = figure
            elif self._is_better(field, key):
                if field in ("step", "epoch") and not abs(figure) < _MAX_STEP:
                    self.has_bad_step = True
                    return None
                row[field] = int(figure) if field in ("step", "epoch") else figure
        if parts:
            row["parts"] = parts
        return row if len(row) > 1 + ("epoch" in row) else None

    def _field(self, key: str) -> str:
        for field, given in self.given.items():
            if given == key:
                return field
        field, _ = self._order.get(key.lower(), ("", 0))
        if field:
            return "" if field in self.given else field
        # A loss with another name is a part of the loss; validation is a separate curve.
        low = key.lower()
        is_part = "loss" in low and not any(w in low for w in ("val", "eval", "test"))
        return "parts" if is_part else ""

    def _is_better(self, field: str, key: str) -> bool:
        """Whether the field is read from this key."""
        best = self.found.get(field)
        if best is None or (field not in self.given and self._rank(key) < self._rank(best)):
            self.found[field] = best = key
        return best == key

    def _rank(self, key: str) -> int:
        return self._order.get(key.lower(), ("", 1 << 20))[1]
