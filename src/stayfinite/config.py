"""Typed settings. Unknown keys are rejected, and all problems are listed at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import UsageError

__all__ = ["PARTS", "REPLAYS", "Settings"]

REPLAYS = ("auto", "full", "off")
PARTS = ("training", "loaders", "saves", "provenance", "processes", "plan")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings with their defaults.

    >>> Settings(budget=0.02).budget
    0.02
    >>> Settings.from_mapping({"budget": 2, "colour": 1})
    Traceback (most recent call last):
    stayfinite.errors.UsageError: 2 problems with the settings:
      - unknown setting 'colour'; known: budget, deferred, diagnose, diagnose_seconds, history, max_batches, rank_seconds, replay, snapshot_ram_share, store_args, without
      - `budget` must be above 0 and at most 1, got 2
    """

    budget: float = 0.005
    """Share of the step time that deep checks and snapshots may take together."""
    deferred: bool = False
    """Read the result of each check one step later, instead of syncing (fused Adam, AdamW, SGD)."""
    history: int = 256
    """How many steps of loss, gradient norm and learning rate an incident includes."""
    max_batches: int = 1024
    """How many batches are kept by reference, for replays that start at the last snapshot."""
    snapshot_ram_share: float = 0.25
    """Share of the free memory that a snapshot may take; a larger one goes to a file."""
    diagnose: bool = True
    """Find the cause and try fixes after locating the origin."""
    diagnose_seconds: float = 20.0
    """Time limit for the experiments of one incident."""
    rank_seconds: float = 30.0
    """How long a rank waits for the others while they investigate a bad step together."""
    replay: str = "auto"
    """How a bad step is replayed: "auto" runs only statements without side effects, "full" runs all statements
    in the sandbox, "off" runs none."""
    without: tuple[str, ...] = ()
    """Parts to turn off: training, loaders, saves, provenance, processes, plan (reading what is printed)."""
    store_args: bool = False
    """Store the whole command line with an incident, instead of removing its secrets."""

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise UsageError(_listing(problems))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Settings:
        """Make settings from the mapping of a config file."""
        known = {f.name for f in dataclasses.fields(cls)}
        problems = [
            f"unknown setting {key!r}; known: {', '.join(sorted(known))}"
            for key in values
            if key not in known
        ]
        defaults = {f.name: f.default for f in dataclasses.fields(cls)}
        merged = {**defaults, **{k: v for k, v in values.items() if k in known}}
        draft = object.__new__(cls)
        for key, value in merged.items():
            object.__setattr__(draft, key, value)
        problems += _problems(draft)
        if problems:
            raise UsageError(_listing(problems))
        return cls(**merged)


def _problems(s: Settings) -> list[str]:
    found = []
    for name, low, high in (
        ("budget", 0.0, 1.0),
        ("snapshot_ram_share", 0.0, 1.0),
        ("diagnose_seconds", 0.0, float("inf")),
        ("rank_seconds", 0.0, float("inf")),
    ):
        value = getattr(s, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            found.append(f"`{name}` must be a number, got {value!r}")
        elif not low < value <= high:
            upper = f" and at most {high:g}" if high != float("inf") else ""
            found.append(f"`{name}` must be above {low:g}{upper}, got {value!r}")
    for name, least in (("history", 2), ("max_batches", 1)):
        value = getattr(s, name)
        if isinstance(value, bool) or not isinstance(value, int):
            found.append(f"`{name}` must be a whole number, got {value!r}")
        elif value < least:
            found.append(f"`{name}` must be at least {least}, got {value!r}")
    if s.replay not in REPLAYS:
        found.append(f"`replay` must be one of {', '.join(REPLAYS)}, got {s.replay!r}")
    if not isinstance(s.without, (tuple, list)) or any(w not in PARTS for w in s.without):
        found.append(f"`without` must be a list of {', '.join(PARTS)}, got {s.without!r}")
    for name in ("deferred", "diagnose", "store_args"):
        if not isinstance(getattr(s, name), bool):
            found.append(f"`{name}` must be true or false, got {getattr(s, name)!r}")
    return found


def _listing(problems: list[str]) -> str:
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''} with the settings:"
    return "\n  - ".join([count, *problems])
