"""A window: one optimizer step with its batches, its figures and its outcome.

Replays are defined here as well, because the runtime routes the backward and the optimizer step of a replay to it.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from ..locate.frames import Frame
from ..locate.slice import Origin
from ..locate.trace import OpTrace
from ..recover.policy import Outlook
from .frames import SavedFrame
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
"""A weak reference to the loader, and its batch."""


class BatchRef:
    """A batch by reference.

    One is made in every healthy step, like a `Window`, so attributes that are rarely set are class defaults.
    """

    loss_fn: Any = None
    is_used = False
    """Whether a backward or an optimizer step has used it."""
    indices: list[Any] | None = None
    """The positions of its samples in the data set, if the sampler is known."""

    def __init__(
        self, step: int, epoch: int, items: list[Item], rng: RngState | None = None
    ) -> None:
        self.step = step
        self.epoch = epoch
        self.items = items
        """One per loader (two under `zip`)."""
        self.rng = rng

    @property
    def value(self) -> Any:
        return self.items[0][1] if len(self.items) == 1 else tuple(i for _, i in self.items)

    @property
    def loader(self) -> Any:
        """The (first) loader that it came from; None if that is deleted, or there was none."""
        return self.items[0][0]() if self.items else None

    def is_from(self, loader: Any) -> bool:
        """Whether a part of it came from this loader."""
        return any(source() is loader for source, _ in self.items)

    def with_value(self, value: Any) -> BatchRef:
        """The same batch with other contents, split among its loaders."""
        if len(self.items) == 1:
            return self.again([(self.items[0][0], value)])
        return self.again([(owner, part) for (owner, _), part in zip(self.items, value)])

    def again(self, items: list[Item] | None = None) -> BatchRef:
        """An unused copy of this batch, perhaps with other items."""
        ref = BatchRef(self.step, self.epoch, self.items if items is None else items, self.rng)
        ref.loss_fn, ref.indices = self.loss_fn, self.indices
        return ref


def joined(refs: list[BatchRef]) -> BatchRef:
    """All batches of a window as one, for a loop body that draws them in an inner loop."""
    items = [item for ref in refs for item in ref.items]
    return BatchRef(refs[-1].step, refs[-1].epoch, items, refs[0].rng)


def is_same(one: list[BatchRef], other: list[BatchRef]) -> bool:
    """Whether both have the same items in the same order."""

    def ids(refs: list[BatchRef]) -> list[int]:
        return [id(item) for ref in refs for _, item in ref.items]

    return one is other or ids(one) == ids(other)


@dataclass(frozen=True)
class Failure:
    """The symptom of a bad step."""

    symptom: str
    """loss | gradient | parameter | buffer | optimizer_state | average | learning_rate | spike | scaler_skip"""
    step: int
    name: str | None = None
    value: float | None = None


class Window:
    """Everything between two optimizer steps: one batch, or several under accumulation."""

    losses: list[tuple[int, Tensor]]
    optimizer_id = 0
    """The optimizer that steps, if there are several: each has its own baseline for spikes. 0 if there is one."""
    norm: Tensor | None = None
    num_backward = 0
    unsynced: tuple[int, ...] = ()
    """The batches, by step, whose gradients were only accumulated on this rank (`no_sync`)."""
    num_attempted = 0
    num_applied = 0
    failure: Failure | None = None
    small_state: Callable[[], None] | None = None
    """Restores rates, scheduler and scaler to their values when the failure was found."""
    is_left_by_scaler = False
    """Whether the scaler had left this step out, and the optimizer was called once more without it."""
    shadows: Any = None
    """The buffers before it, for a deferred step: later windows have overwritten the common copies by then."""
    ahead: Sequence[BatchRef] = ()
    """Batches that were drawn before the last one and are not used yet: discarded, or prefetched."""
    is_ahead = False
    """They were prefetched: each backward belongs to the next of `batches`."""
    error: BaseException | None = None
    """The exception, if a NaN made the step raise before it had a loss."""
    closure: Callable[[], Any] | None = None
    """The closure that the loop passed to its optimizer."""
    evaluation: Callable[[], Any] | None = None
    """The same, where `closure` is the optimizer's whole step."""
    search_point: Any = None
    """The weights at which the closure failed, for an optimizer with a line search."""
    loss: float | None = None
    """The last loss as a number, if the check has read it."""
    live_loss: weakref.ref[Tensor] | None = None
    """The last loss with its graph, while the loop keeps it."""
    saved_frames: tuple[SavedFrame, ...] = ()
    """The frames of the loop at a backward that was not finite, if other backwards followed before the step."""
    is_seen = False
    """Whether its loss and norm were compared with the usual."""
    is_moved = False
    """Whether an optimizer had already stepped in this window when the failure was found."""
    is_loaderless = False
    """Whether the loop makes its batches itself, without a loader."""
    manual_update = ""
    """In a training without a torch optimizer: what was done about the script's own update, as text."""
    is_left_by_script = False
    """Whether the script has seen the bad loss itself and gone on without training on it."""
    left_at: tuple[CodeType, int] | None = None
    """The `continue` by which it did so."""
    is_reverted = False
    """Whether such an update is undone before the next step."""
    changed_from: tuple[Window, Callable[[Any], Any], bool] | None = None
    """For a copy with changed batches: the original, the change, and whether all ranks apply it."""
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    """A context in which it is replayed."""

    def __init__(
        self, batches: list[BatchRef], rng: RngState | None = None, lrs: tuple[float, ...] = ()
    ) -> None:
        self.batches = batches
        self.rng = rng
        self.lrs = lrs
        self.losses = []

    def with_batches(self, batches: list[BatchRef]) -> Window:
        """The same window with other batches."""
        window = copy.copy(self)
        window.batches = batches
        return window

    def with_values(self, change: Callable[[Any], Any], is_for_all: bool = False) -> Window:
        """The same window with changed batch contents; `is_for_all`: the other ranks change theirs as well."""
        window = self.with_batches([b.with_value(change(b.value)) for b in self.batches])
        window.changed_from = (self, change, is_for_all)
        return window

    @property
    def step(self) -> int:
        return self.batches[-1].step if self.batches else 0

    @property
    def is_scripts_own(self) -> bool:
        """Whether the script itself decides about its update, whatever the policy says."""
        return bool(self.manual_update) or self.is_left_by_script

    def is_of(self, optimizer: Any) -> bool:
        """Whether this optimizer steps at its end."""
        return self.optimizer_id in (0, id(optimizer))

    @property
    def is_added_up(self) -> bool:
        """Whether it has several backwards without a loader, and the frames of the earlier ones are unknown."""
        return self.is_loaderless and self.num_backward > 1 and not self.saved_frames

    @property
    def epoch(self) -> int:
        return self.batches[-1].epoch if self.batches else 0


class Change(Protocol):
    """A change of the user's source."""

    def installed(self) -> AbstractContextManager[None]:
        """Install the changed source for one replay."""


@dataclass
class Replay:
    """A request of an investigation: compute this window again."""

    window: Window
    trace: OpTrace | None = None
    contexts: list[AbstractContextManager[Any]] = field(default_factory=list)
    is_applied: bool = False
    """Whether optimizer steps really run; the investigation restores the state."""
    is_current: bool = False
    """Whether the loop is still in this window, and will run the rest of its iteration itself."""
    vehicle: Any = None
    """The vehicle to use instead of that of the investigation."""
    is_unscaled: bool = False
    """Run with a loss scale of 1, which separates an AMP overflow from a real fault."""
    wants_norm: bool = False
    """Whether to read the norm of the gradients at its end."""
    change: Change | None = None
    """A change of the user's source to run with."""


@dataclass
class ReplayResult:
    """The result of a replay."""

    failure: Failure | None = None
    origin: Origin | None = None
    is_complete: bool = True
    num_steps: int = 0
    """How often it came to an optimizer's step."""
    losses: list[float] = field(default_factory=list)
    grad_norm: float | None = None
    """The norm of all gradients at its end, if requested."""
    loss_factor: float | None = None
    """The constant by which the loss was multiplied last."""
    loss_factor_line: Frame | None = None
    """The line of the script that did so."""
    probes: list[Reading] = field(default_factory=list)
    """The readings of the probes in the model, in order."""


class RunningReplay(Protocol):
    """Receives the backward and the optimizer steps while a replay runs."""

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

    def check_results(self, loss: Tensor, grads: Sequence[Tensor]) -> None: ...


class Verdict:
    """The outcome of an investigation."""

    def __init__(
        self,
        incident: Any,
        redo: list[Window] | None = None,
        window: Window | None = None,
        keeps_random_state: bool = False,
    ) -> None:
        self.incident = incident
        """None if it was no incident (a normal skip of the GradScaler)."""
        self.window = window
        """The bad window, which is not applied."""
        self.redo = redo or []
        """Windows that ran on corrupted state and have to be run again."""
        self.run_again: Callable[[Window, bool], Verdict | bool] | None = None
        self.can_repeat = True
        """Whether the step can be made again as the loop makes it."""
        """Runs and applies such a window, which may be the current one; False if that is not possible, a
        Verdict if the window itself is bad."""
        self.outlook: Outlook | None = None
        """Set if skipping cannot help, because the state itself has diverged."""
        self.is_rebuilt = False
        """The state was rebuilt from a snapshot, so there is nothing else to restore."""
        self.keeps_random_state = keeps_random_state
        """Do not restore the random state: the numbers that the step drew stay used."""
