"""One optimizer step as the loop makes it: its batches, what was seen, how it ended."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..locate.slice import Origin
from ..locate.trace import OpTrace
from ..observe.probes import Reading
from ..observe.rng import RngState

__all__ = ["BatchRef", "Failure", "Pass", "PassResult", "Window"]


class BatchRef:
    """A batch by reference.

    One is made in every healthy step, like a `Window`: what is rarely set is a default of the class.
    """

    loss_fn: Any = None
    is_used = False
    """A backward, an optimizer step or the loop's own check was seen for it."""
    indices: list[Any] | None = None
    ordinal = 0
    """The how manieth batch of its loader it is, from 0."""

    def __init__(
        self, step: int, epoch: int, items: list[tuple[Any, Any]], rng: RngState | None = None
    ) -> None:
        self.step = step
        self.epoch = epoch
        self.items = items
        """(owner, item): one per loader that took part (two under `zip`); the owner says who can
        hand it out again."""
        self.rng = rng

    @property
    def value(self) -> Any:
        return self.items[0][1] if len(self.items) == 1 else tuple(i for _, i in self.items)

    def again(self, items: list[tuple[Any, Any]] | None = None) -> BatchRef:
        """The same batch as if it were new, perhaps with other items."""
        ref = BatchRef(self.step, self.epoch, self.items if items is None else items, self.rng)
        ref.loss_fn, ref.indices, ref.ordinal = self.loss_fn, self.indices, self.ordinal
        return ref


@dataclass(frozen=True)
class Failure:
    """A symptom."""

    symptom: str
    """loss | gradient | parameter | buffer | optimizer_state | scaler_skip"""
    step: int
    name: str | None = None
    value: float | None = None


class Window:
    """Everything between two optimizer steps: one batch, or several under accumulation."""

    losses: list[tuple[int, Tensor]]
    suspects: Sequence[tuple[int, Tensor]] = ()
    """Scalars that the loop itself asked about (`torch.isnan(loss)`)."""
    ahead: Sequence[BatchRef] = ()
    """Batches that were drawn before the last one and not used yet: thrown away, or drawn ahead."""
    is_ahead = False
    """They were drawn ahead: each backward belongs to the next of `batches`."""
    mover = 0
    """Which optimizer's step it is, where there are several: each has losses of its own size."""
    norm: Tensor | None = None
    num_backward = 0
    num_attempted = 0
    num_applied = 0
    failure: Failure | None = None
    small_state: Any = None
    """Scheduler and scaler as they were when the failure was seen."""
    root_call: Any = None
    """(model, args, kwargs, random state) of its last forward, where that is remembered."""
    scenes: Sequence[Any] = ()
    """The user's frames when it failed, for a loop that cannot be sent back (see body.py)."""
    loss: float | None = None
    """The last loss as a number, where the check has read it anyway."""
    is_seen = False
    """Its loss and norm have been compared with the usual."""
    is_lost = False
    """The loop is over: nobody will run this window again."""
    is_moved = False
    """Another optimizer had already stepped on this batch when the failure was seen."""

    def __init__(
        self, batches: list[BatchRef], rng: RngState | None = None, lrs: tuple[float, ...] = ()
    ) -> None:
        self.batches = batches
        self.rng = rng
        self.lrs = lrs
        self.losses = []

    def with_batches(self, batches: list[BatchRef]) -> Window:
        """The same window over other batches."""
        window = copy.copy(self)
        window.batches = batches
        return window

    @property
    def step(self) -> int:
        return self.batches[-1].step if self.batches else 0

    @property
    def epoch(self) -> int:
        return self.batches[-1].epoch if self.batches else 0


@dataclass
class Pass:
    """One more run over some batches, asked for by an investigation."""

    window: Window
    mode: str
    """trace | advance | experiment"""
    trace: OpTrace | None = None
    contexts: list[AbstractContextManager[Any]] = field(default_factory=list)
    is_applied: bool = False
    """Whether optimizer steps really run (state is put back by the investigation)."""
    step_trace: OpTrace | None = None
    """The optimizer's step alone is run once more under this trace if it spoils the state."""
    is_unscaled: bool = False
    """Run with a loss scale of 1, to tell an AMP overflow from a real fault."""
    batch: Any = None
    """A changed batch, for experiments that drop samples."""


@dataclass
class PassResult:
    """What such a run showed."""

    failure: Failure | None = None
    origin: Origin | None = None
    is_complete: bool = True
    losses: list[float] = field(default_factory=list)
    loss_factor: float | None = None
    """A constant by which the loss was multiplied last of all."""
    probes: list[Reading] = field(default_factory=list)
    """What the probes inside the model saw, in their order."""
