"""One optimizer step as the loop makes it: its batches, what was seen, how it ended."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..locate.slice import Origin
from ..locate.trace import OpTrace
from ..observe.probes import Reading
from ..observe.rng import RngState

__all__ = ["BatchRef", "Failure", "Pass", "PassResult", "Window"]


@dataclass(slots=True)
class BatchRef:
    """A batch by reference. `owner` says who can hand it out again."""

    step: int
    epoch: int
    items: list[tuple[Any, Any]] = field(default_factory=list)
    """(owner, item): one per loader that took part (two under `zip`)."""
    loss_fn: Any = None
    rng: RngState | None = None
    is_used: bool = False
    """A backward, an optimizer step or the loop's own check was seen for it."""
    indices: list[Any] | None = None

    @property
    def value(self) -> Any:
        return self.items[0][1] if len(self.items) == 1 else tuple(i for _, i in self.items)


@dataclass(frozen=True)
class Failure:
    """A symptom."""

    symptom: str
    """loss | gradient | parameter | buffer | optimizer_state | scaler_skip"""
    step: int
    name: str | None = None
    value: float | None = None


@dataclass(slots=True)
class Window:
    """Everything between two optimizer steps: one batch, or several under accumulation."""

    batches: list[BatchRef] = field(default_factory=list)
    rng: RngState | None = None
    losses: list[tuple[int, Tensor]] = field(default_factory=list)
    suspects: list[tuple[int, Tensor]] = field(default_factory=list)
    """Scalars that the loop itself asked about (`torch.isnan(loss)`)."""
    norm: Tensor | None = None
    num_backward: int = 0
    num_attempted: int = 0
    num_applied: int = 0
    failure: Failure | None = None
    small_state: Any = None
    """Scheduler and scaler as they were when the failure was seen."""
    lrs: tuple[float, ...] = ()
    root_call: Any = None
    """(model, args, kwargs, random state) of its last forward, where that is remembered."""
    scenes: list[Any] = field(default_factory=list)
    """The user's frames when it failed, for a loop that cannot be sent back (see body.py)."""
    is_seen: bool = False
    """Its loss and norm have been compared with the usual."""
    is_lost: bool = False
    """The loop is over: nobody will run this window again."""
    is_moved: bool = False
    """Another optimizer had already stepped on this batch when the failure was seen."""

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
