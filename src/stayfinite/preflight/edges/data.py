"""Draws more of the training's own batches."""

from __future__ import annotations

import itertools
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ...investigate.budget import Budget
from ...runtime.rng import RngState
from ...runtime.rows import num_rows
from ..probes import Subject

__all__ = ["num_last", "own_batches"]

MOST_BATCHES = 48
_SECONDS = 0.5


def own_batches(subject: Subject) -> list[Any]:
    """The first batches, and those behind them where the loader can be asked again."""
    loaders = [x for x in subject.loaders if x is not None]
    if len(loaders) != 1 or not subject.can_change_rows or not _is_free(loaders[0]):
        return list(subject.batches)
    rng = RngState.now()
    own = getattr(loaders[0], "generator", None)
    state = own.get_state() if own is not None else None
    found: list[Any] = []
    budget = Budget(_SECONDS)
    try:
        for batch in itertools.islice(iter(loaders[0]), MOST_BATCHES):
            found.append(batch)
            if budget.is_over:
                break
    except Exception:
        return list(subject.batches)  # the data group says what is wrong with the others
    finally:
        rng.restore()
        if own is not None:
            own.set_state(state)
    behind = found[len(subject.batches) :]
    return [*subject.batches, *behind]


def _is_free(loader: Any) -> bool:
    """Asking it once more costs nothing and takes nothing away."""
    if isinstance(loader, (list, tuple)):
        return True
    return (
        isinstance(loader, DataLoader)
        and loader.num_workers == 0
        and not isinstance(loader.dataset, IterableDataset)
    )


def num_last(subject: Subject) -> int | None:
    """How many samples the last batch of an epoch has; 0 if it is full or dropped, None: unknown."""
    total = num_rows(subject.batches[0])
    for loader in subject.loaders:
        if total is None or getattr(loader, "batch_size", None) != total:
            continue
        if loader.drop_last:
            return 0
        try:
            return int(len(loader.dataset) % total)
        except (TypeError, AttributeError):
            return None
    return None
