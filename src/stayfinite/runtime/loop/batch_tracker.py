"""Tracks the batches of a loop: opens windows and fills them as batches are drawn.

It assumes nothing about the structure of the loop. A window holds the batches between two optimizer steps. A batch of
another loader becomes part of it only when the loop trains on it.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections import UserDict
from typing import Any

import torch
from torch import Tensor

from ...numerics.health import is_finite
from ..discover import near_generators
from ..engine import Engine
from ..weak import reference
from ..window import BatchRef, Window

__all__ = ["BatchTracker", "whole"]

_MAX_AHEAD = 64
_MAX_BATCHES = 64


class BatchTracker:
    """Counts batches and epochs, and holds the open window."""

    def __init__(self, engine: Engine, counts_every_batch: bool) -> None:
        self._engine = engine
        self.counts_every_batch = counts_every_batch
        """True for a loader in `guard(...)`; a loader of a script may be for evaluation."""
        self.window: Window | None = None
        self.num_batches = 0
        self._epochs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._num_epochs = 0
        self._began: dict[int, int] = {}
        """The number of batches when each loader was last started."""
        self.trained: set[int] = set()
        """Loaders (by id) whose batches were trained on in this epoch."""
        self.other: BatchRef | None = None
        """A batch of another loader that was drawn after the step and not used yet."""
        self._is_copied = False
        """Whether the buffers were copied when it was drawn."""
        self.epoch_of: Any = None
        self.epoch_now = 0
        """The epoch of the loader of the last batch; `epoch_of` is a weak reference to it, None at an epoch's start."""

    @property
    def num_epochs(self) -> int:
        """The number of epochs; with several loaders, of the one that has completed most."""
        return (
            self._num_epochs if self.counts_every_batch else max(self._epochs.values(), default=0)
        )

    def num_open(self) -> int:
        """Applied steps of the open window, which are not counted yet."""
        return min(self.window.num_applied, 1) if self.window is not None else 0

    def owns(self, loader: Any) -> bool:
        """Whether the open window has a batch of this loader."""
        for ref in self.window.batches if self.window is not None else ():
            for source, _ in ref.items:
                if source() is loader:
                    return True
        return False

    def over_by(self, loader: Any) -> Window | None:
        """The window whose iteration ends because the loop asks this loader for a batch."""
        window = self.window
        if window is None or not self.owns(loader):
            return None
        self.other = None  # batches of other loaders in between were not trained on
        return window if window.num_attempted else None

    def add(self, loader: Any, batch: Any, indices: Any) -> None:
        """Add a batch to the window, or keep it in `other` until the loop trains on it."""
        try:
            source: Any = weakref.ref(loader)
        except TypeError:
            source = reference(loader)
        self._engine.state.num_changes += 1
        window, item = self.window, (source, whole(batch))
        if window is None:
            rng = self._engine.open()
            if (
                source is not self.epoch_of
            ):  # `weakref.ref` returns the same object for the same loader
                self.epoch_of, self.epoch_now = source, self._epoch(loader)
            ref = BatchRef(self.num_batches, self.epoch_now, [item], rng)
            ref.indices = indices
            self.window = self._opened([ref], rng)
            return
        if window.is_loaderless or (window.num_attempted and not self.owns(loader)):
            if self.other is None or self.other.is_from(loader):
                self.other = self._new_ref(loader)
                # Its forward runs before it is known whether the loop trains on it.
                self._is_copied = torch.is_grad_enabled()
                if self._is_copied:
                    self._copy_buffers()
            self.other.items.append(item)
            self.other.indices = self.other.indices or indices
            return
        last = window.batches[-1]
        if last.is_from(loader):
            last = self._next_ref(window, loader)
        last.items.append(item)
        last.indices = last.indices or indices

    def _copy_buffers(self) -> None:
        self._engine.state.buffers.copy(is_kept=self._engine.deferral.is_waiting)

    def _new_ref(self, loader: Any) -> BatchRef:
        return BatchRef(self.num_batches, self._epoch(loader), [], self._engine.rng.capture())

    def _next_ref(self, window: Window, loader: Any) -> BatchRef:
        """The same loader provides another batch before any optimizer step."""
        last = window.batches[-1]
        if not last.is_used and last.items[0][0]() is not loader:
            # An inner loop: keep the batch of the outer loader, and its random state.
            last.items = [item for item in last.items if item[0]() is not loader]
            return last
        if last.is_used or self.counts_every_batch:
            self.num_batches += 1
        ref = self._new_ref(loader)
        if last.is_used and window.num_backward:
            window.batches.append(ref)  # gradient accumulation
            del window.batches[:-_MAX_BATCHES]
            window.ahead = ()
        else:
            window.batches[-1] = ref  # the last batch was not used
            window.ahead = (*window.ahead[-_MAX_AHEAD:], last)
            if len(window.batches) == 1:
                window.rng = ref.rng
        return ref

    def take_other(self) -> Window | None:
        """At a backward: if it belongs to the batch of another loader, open the next window with that.

        Returns the window that ends by this.
        """
        if self.other is None or not torch.is_grad_enabled():
            return None
        ref, self.other = self.other, None
        over, self.window = self.window, None
        if over is not None:
            self.close(over)
        ref.step = self.num_batches
        if not self._is_copied:
            self._copy_buffers()
        self.window = self._opened([ref], ref.rng)
        return over

    def open_loaderless(self, rng: Any) -> Window:
        """Open a window without a loader: from one optimizer step to the next."""
        self._engine.state.num_changes += 1
        window = self._opened([BatchRef(self.num_batches, 0, [])], rng)
        window.is_loaderless = True
        self.window = window
        return window

    def _opened(self, batches: list[BatchRef], rng: Any) -> Window:
        state = self._engine.state
        if state.companions.holders:
            state.companions.note()
        return Window(batches, rng, state.lrs())

    def note_used(self, window: Window) -> int:
        """Mark the last batch as trained on; returns its step."""
        last = window.batches[-1]
        if window.num_backward and last.is_used and window.ahead and not window.is_ahead:
            self._take_ahead(window)
        if window.is_ahead:
            at = min(len(window.losses), len(window.batches) - 1)
            return window.batches[at].step
        last.is_used = True
        return last.step

    def drop_stale_losses(self, window: Window) -> None:
        """Drop losses whose gradients the loop has discarded.

        That is so if the first parameter of every optimizer has no gradient any more, or if all gradients are zero after
        a bad loss.
        """
        optimizers = self._engine.state.optimizers
        firsts = [g["params"][:1] for o in optimizers for g in o.param_groups[:1]]
        last = window.losses[-1][1]
        if all(p.grad is None for first in firsts for p in first) or (
            last.is_cpu
            and not is_finite(last)
            and not any(grad.any() for _, grad in self._engine.state.grads())
        ):
            window.losses.clear()
            window.saved_frames = ()

    def _take_ahead(self, window: Window) -> None:
        """After a second backward without a new batch: several batches were prefetched, one for each backward."""
        last = window.batches[-1]
        drawn = [*window.ahead, last]
        window.is_ahead = True
        if len(window.batches) == 1:
            window.rng = drawn[0].rng
        for i, ref in enumerate(drawn):
            ref.step, ref.is_used = last.step + i, True
        window.batches[-1:] = drawn
        self.num_batches = drawn[-1].step

    def close(self, window: Window) -> None:
        """End a window and count its batches."""
        if window is self.window:
            self.window = None
        for ref in window.batches:
            for source, _ in ref.items if ref.is_used else ():
                self.trained.add(id(source()))
        step = window.batches[-1].step
        if not window.is_loaderless and step >= self.num_batches:
            self.num_batches = step + 1

    def is_trained(self, loader: Any) -> bool:
        """Whether the loop trained on this loader's batches in this epoch."""
        return id(loader) in self.trained

    def has_trained(self, loader: Any) -> bool:
        """Whether the loop has ever trained on this loader's batches."""
        return self.is_trained(loader) or self._epoch(loader) > 0

    def forget(self, loader: Any) -> None:
        """Remove unused batches of an exhausted loader: they belong to no step."""
        if self.other is not None and self.other.is_from(loader):
            self.other = None
        window = self.window
        if window is None or window.num_attempted or window.num_backward:
            return
        last = window.batches[-1]
        if not last.is_used:
            last.items = [(o, i) for o, i in last.items if o() is not loader]
            if not last.items and len(window.batches) == 1 and not window.is_loaderless:
                self.window = None

    def drops_batch(self, loader: Any, indices: Any) -> bool:
        """Whether a rollback skips the loader's next batch; it is counted in that case."""
        left_out = self._engine.recovery.left_out
        is_first = next(iter(left_out.drops)) == id(loader)
        if not left_out.drops_batch(self.num_batches, indices, loader, is_first):
            return False
        self.num_batches += is_first
        return True

    def _epoch(self, loader: Any) -> int:
        if self.counts_every_batch:
            return self._num_epochs
        try:
            return self._epochs.get(loader, 0)
        except TypeError:
            return 0

    def position(self, window: Window) -> tuple[int, int] | None:
        """(batches drawn, total batches) of the window's epoch, if the loader has a length."""
        owner = next((o for ref, _ in window.batches[-1].items if (o := ref()) is not None), None)
        began = self._began.get(id(owner))
        if began is None or owner is None:
            return None
        try:
            return window.step + 1 - began, len(owner)
        except TypeError:
            return None

    def begin_epoch(self, loader: Any) -> None:
        """A loader is started; ends its previous epoch if all batches were drawn."""
        self._engine.rng.watch_near(near_generators(sys._getframe(1)))
        if not self.num_batches:
            self.forget(loader)  # a first look at a batch, before the training begins
        began = self._began.get(id(loader))
        self._began[id(loader)] = self.num_batches
        if began is not None and self.is_trained(loader):
            try:
                is_through = self.num_batches - began >= len(loader)
            except TypeError:
                return
            if is_through:
                self.end_epoch(loader)

    def end_epoch(self, loader: Any) -> None:
        self._engine.state.num_changes += 1
        self.trained.discard(id(loader))
        self.epoch_of = None
        self._engine.recovery.note_epoch()
        if self.counts_every_batch:
            self._num_epochs += 1
            return
        try:
            self._epochs[loader] = self._epochs.get(loader, 0) + 1
        except TypeError:
            return


def whole(batch: Any) -> Any:
    """A shallow copy of a batch that the loop may modify (`batch.pop("labels")`)."""
    kind = type(batch)
    if kind is Tensor or kind is tuple:
        return batch
    if kind is dict or kind is list:
        return kind(batch)
    return copy.copy(batch) if isinstance(batch, UserDict) else batch
