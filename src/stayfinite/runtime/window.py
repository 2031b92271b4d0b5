"""A window: one optimizer step with its batches, what was seen, and its end.

What a replay is asked for and what it showed are here as well, since the runtime routes the calls of
a replay (its backward, its optimizer step) to whoever runs it.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from ..locate.frames import Frame
from ..locate.slice import Origin
from ..locate.trace import OpTrace
from ..recover.policy import Outlook
from .frames import Standing
from .probes import Reading
from .rng import RngState

__all__ = [
    "BatchRef",
    "Change",
    "Failure",
    "Item",
    "Replay",
    "ReplayResult",
    "RunningReplay",
    "Verdict",
    "Window",
    "is_same",
    "joined",
]


Item = tuple[Callable[[], Any], Any]
"""What gives the loader for as long as the training holds it, and its batch."""


class BatchRef:
    """A batch by reference.

    One is made in every healthy step, like a `Window`: what is rarely set is a default of the class.
    """

    loss_fn: Any = None
    is_used = False
    """A backward or an optimizer step was seen for it."""
    indices: list[Any] | None = None
    """Where its samples are in the data set, if the sampler said so."""

    def __init__(
        self, step: int, epoch: int, items: list[Item], rng: RngState | None = None
    ) -> None:
        self.step = step
        self.epoch = epoch
        self.items = items
        """One per loader that took part (two under `zip`)."""
        self.rng = rng

    @property
    def value(self) -> Any:
        return self.items[0][1] if len(self.items) == 1 else tuple(i for _, i in self.items)

    @property
    def loader(self) -> Any:
        """The (first) loader that gave it; None where it is gone, or there was none."""
        return self.items[0][0]() if self.items else None

    def is_from(self, loader: Any) -> bool:
        """Whether this loader gave a part of it."""
        return any(source() is loader for source, _ in self.items)

    def with_value(self, value: Any) -> BatchRef:
        """The same with other contents, for each loader its own share."""
        if len(self.items) == 1:
            return self.again([(self.items[0][0], value)])
        return self.again([(owner, part) for (owner, _), part in zip(self.items, value)])

    def again(self, items: list[Item] | None = None) -> BatchRef:
        """The same batch as if it were new, perhaps with other items."""
        ref = BatchRef(self.step, self.epoch, self.items if items is None else items, self.rng)
        ref.loss_fn, ref.indices = self.loss_fn, self.indices
        return ref


def joined(refs: list[BatchRef]) -> BatchRef:
    """All batches of a window, for a body that draws them by itself in a loop of its own."""
    items = [item for ref in refs for item in ref.items]
    return BatchRef(refs[-1].step, refs[-1].epoch, items, refs[0].rng)


def is_same(one: list[BatchRef], other: list[BatchRef]) -> bool:
    """Whether they hold the same items, in the same order."""

    def ids(refs: list[BatchRef]) -> list[int]:
        return [id(item) for ref in refs for _, item in ref.items]

    return one is other or ids(one) == ids(other)


@dataclass(frozen=True)
class Failure:
    """A symptom."""

    symptom: str
    """loss | gradient | parameter | buffer | optimizer_state | average | learning_rate | spike | scaler_skip"""
    step: int
    name: str | None = None
    value: float | None = None


class Window:
    """Everything between two optimizer steps: one batch, or several under accumulation."""

    losses: list[tuple[int, Tensor]]
    optimizer_id = 0
    """Which optimizer's step it is, where there are several: each has losses of its own size."""
    norm: Tensor | None = None
    num_backward = 0
    unsynced: tuple[int, ...] = ()
    """Steps of its batches whose gradients were only added up on this rank (`no_sync`)."""
    num_attempted = 0
    num_applied = 0
    failure: Failure | None = None
    small_state: Callable[[], None] | None = None
    """Puts rates, scheduler and scaler back to how they were when the failure was seen."""
    shadows: Any = None
    """The buffers before it, where its verdict comes when later windows have copied theirs."""
    ahead: Sequence[BatchRef] = ()
    """Batches that were drawn before the last one and not used yet: thrown away, or drawn ahead."""
    is_ahead = False
    """They were drawn ahead: each backward belongs to the next of `batches`."""
    error: BaseException | None = None
    """What the step raised, where a NaN made it raise before there was a loss."""
    closure: Callable[[], Any] | None = None
    """What computes the loss, where the loop has given it to its optimizer."""
    search_point: Any = None
    """The weights at which that failed, where an optimizer that searches had gone there."""
    loss: float | None = None
    """The last loss as a number, where the check has read it anyway."""
    live_loss: weakref.ref[Tensor] | None = None
    """The last loss with its graph, as long as the loop keeps it."""
    standing: tuple[Standing, ...] = ()
    """How the loop stood at a backward that is not finite, where it went on to others before its step."""
    is_seen = False
    """Its loss and norm have been compared with the usual."""
    is_moved = False
    """An optimizer had already stepped in this window when the failure was seen."""
    is_loaderless = False
    """No loader gave its batch: the loop makes its own."""
    own_update = ""
    """Of a training without a torch optimizer: what became of the update that the script makes by itself."""
    is_put_back = False
    """Such an update is undone before the next step."""
    changed_from: tuple[Window, Callable[[Any], Any], bool] | None = None
    """Of which window it is a copy whose batches were changed, by what, and whether all ranks change theirs."""
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    """What it is computed inside of, where it is made again in another way."""

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

    def with_values(self, change: Callable[[Any], Any], is_for_all: bool = False) -> Window:
        """The same window with what is in its batches changed; `is_for_all`: by the other ranks as well."""
        window = self.with_batches([b.with_value(change(b.value)) for b in self.batches])
        window.changed_from = (self, change, is_for_all)
        return window

    @property
    def step(self) -> int:
        return self.batches[-1].step if self.batches else 0

    def is_of(self, optimizer: Any) -> bool:
        """Whether it ends with a step of this optimizer."""
        return self.optimizer_id in (0, id(optimizer))

    @property
    def is_added_up(self) -> bool:
        """Several backwards without a loader, and nobody knows how the loop stood at those that are over."""
        return self.is_loaderless and self.num_backward > 1 and not self.standing

    @property
    def epoch(self) -> int:
        return self.batches[-1].epoch if self.batches else 0


class Change(Protocol):
    """A changed source of the user's."""

    def installed(self) -> AbstractContextManager[None]:
        """For one replay."""


@dataclass
class Replay:
    """One more computation of some batches, asked for by an investigation."""

    window: Window
    trace: OpTrace | None = None
    contexts: list[AbstractContextManager[Any]] = field(default_factory=list)
    is_applied: bool = False
    """Whether optimizer steps really run (state is put back by the investigation)."""
    is_current: bool = False
    """The loop stands in the middle of this window: what follows the step it does by itself."""
    vehicle: Any = None
    """Who computes it, where it is not the vehicle of the investigation."""
    is_unscaled: bool = False
    """Run with a loss scale of 1, to tell an AMP overflow from a real fault."""
    wants_norm: bool = False
    """Whether the norm of the gradients is to be read at its end."""
    change: Change | None = None
    """The user's source with a change, which is run in place of the source as it is."""


@dataclass
class ReplayResult:
    """What such a computation showed."""

    failure: Failure | None = None
    origin: Origin | None = None
    is_complete: bool = True
    losses: list[float] = field(default_factory=list)
    grad_norm: float | None = None
    """Of all gradients at its end, where it was asked for."""
    loss_factor: float | None = None
    """A constant by which the loss was multiplied last of all."""
    loss_factor_line: Frame | None = None
    """The script's line that did so."""
    probes: list[Reading] = field(default_factory=list)
    """What the probes inside the model saw, in their order."""


class RunningReplay(Protocol):
    """Where backward and optimizer steps go while a replay runs."""

    def on_backward(
        self,
        loss: Tensor,
        raw: Tensor,
        call: Callable[[], Any],
        keeping: Callable[[], Any] | None = None,
    ) -> Any: ...

    def on_optimizer_step(self, optimizer: Optimizer, call: Callable[[], Any]) -> Any: ...

    def begin_step(self) -> bool: ...

    def end_step(self) -> None: ...

    def on_closure_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], call: Callable[[Any], Any]
    ) -> Any: ...

    def on_scaler_skip(self, optimizer: Optimizer) -> None: ...

    def look_at_results(self, loss: Tensor, grads: Sequence[Tensor]) -> None: ...


class Verdict:
    """How an investigation ended."""

    def __init__(
        self,
        incident: Any,
        redo: list[Window] | None = None,
        window: Window | None = None,
        keeps_random_state: bool = False,
    ) -> None:
        self.incident = incident
        """None: it was no incident (the GradScaler's own business)."""
        self.window = window
        """The window that went wrong and is not applied."""
        self.redo = redo or []
        """Windows that ran on corrupted state and must be run again."""
        self.run_again: Callable[[Window, bool], Verdict | bool] | None = None
        """Computes and applies such a window, which may be the one that the loop stands in; False where it
        could not, a Verdict where the window is bad by itself."""
        self.outlook: Outlook | None = None
        """Set where leaving the window out cannot help, because the state itself has run away."""
        self.is_rebuilt = False
        """The state was built anew from a snapshot: nothing else is to be put back."""
        self.keeps_random_state = keeps_random_state
        """The generators stay where they are: the numbers that the step drew stay drawn."""
