"""`for batch in guard(loader)`: notes the batches of any iterable."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from ...errors import UsageError
from ...patches.loaders import samples
from .driver import LoopDriver

__all__ = ["GivenBatches"]


class GivenBatches:
    """Iterates over the batches of a loader in order; one iteration is one epoch."""

    def __init__(self, driver: LoopDriver, loader: Iterable[Any], guard: object) -> None:
        self._driver = driver
        self._guard = guard
        """Keeps the guard alive while the loop runs; there may be no other reference."""
        self._loader = loader
        self._inner: Iterator[Any] | None = None
        self._num_given = 0

    def __iter__(self) -> GivenBatches:
        return self

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        driver, call = self._driver, self._driver.firewall.call
        ordinary, loader = driver.ordinary, self._loader
        if self._inner is None:
            driver.thread_id = threading.get_ident()
            self._inner = iter(self._loader)
            call(driver.window_ends.watch, loader, self)
        if not call(ordinary.is_over_by, loader):
            call(driver.before_batch, loader)
        while True:
            samples.of_batch = None
            try:
                batch = next(self._inner)
            except StopIteration:
                call(self._end)
                raise
            indices = samples.of_batch
            if call(ordinary.takes_batch, loader, batch, indices) or call(
                driver.takes_batch, loader, batch, indices, fallback=True
            ):
                self._num_given += 1
                return batch

    def _end(self) -> None:
        self._driver.on_loader_end(self._loader)
        if not self._num_given and iter(self._loader) is self._loader:
            raise UsageError(
                "the loader gave no batch: it is an iterator that is already exhausted; "
                "pass the loader itself, not iter(loader)"
            )
