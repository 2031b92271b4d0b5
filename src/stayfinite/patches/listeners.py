"""The interfaces of the listeners that the patches call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from .firewall import Firewall

__all__ = ["Ordinary", "TrainingListener"]


class Ordinary(Protocol):
    """The fast methods of a listener. If one returns False or None, it has had no effect, and the general method of the
    listener is called.
    """

    def is_over_by(self, loader: Any) -> bool:
        """The fast form of `before_batch`."""

    def takes_batch(self, loader: Any, batch: Any, indices: Any) -> bool: ...

    def takes_backward(self, loss: Any) -> bool:
        """The fast form of `before_backward`."""

    def may_step(self, optimizer: Any) -> bool | None: ...


class TrainingListener(Protocol):
    """Receives the events of a training loop. An `on_…` method with a `call` argument decides whether to call it."""

    @property
    def thread_id(self) -> int:
        """The thread whose calls it receives."""

    @property
    def is_replaying(self) -> bool: ...

    @property
    def firewall(self) -> Firewall: ...

    @property
    def ordinary(self) -> Ordinary | None:
        """The fast methods, for nearly every healthy step; None if there are none."""

    @property
    def wants_gradients(self) -> bool:
        """Whether to call `after_backward`: there is no torch optimizer, or each backward is checked."""

    def before_backward(self, loss: Tensor) -> bool | None:
        """Whether the graph has to be retained for a replay."""

    seed: Any
    """The start gradient of the next backward instead of 1, or None; reset when it is read."""

    def after_backward(self) -> None: ...

    def replay_backward(
        self, loss: Tensor, call: Callable[[], Any], keeping: Callable[[], Any]
    ) -> Any:
        """`keeping`: the same call with a retained graph."""

    def on_clip(self, norm: Tensor) -> None: ...

    def on_optimizer(self, optimizer: Any) -> None: ...

    def on_scheduler(self, scheduler: Any) -> None: ...

    def owns(self, optimizer: Any) -> bool: ...

    def has_batch(self) -> bool:
        """Whether there is a current batch. If two listeners own an optimizer (a guard that was not closed), the step belongs to
        the one with a batch.
        """

    def may_step(self, optimizer: Any) -> bool: ...

    def undo_unless_fine(self, optimizer: Any) -> Callable[[], None] | None: ...

    def before_replayed_step(self, optimizer: Any) -> Callable[[], None] | None: ...

    def after_replayed_step(self, optimizer: Any) -> None: ...

    def on_step_done(self, optimizer: Any, is_done: bool) -> None: ...

    def special_step(self, optimizer: Any, closure: Any, call: Callable[[Any], Any]) -> Any: ...

    def on_foreign_step(self) -> None: ...

    def on_step_elsewhere(self, optimizer: Any) -> None:
        """Called in another thread, unlike all other methods."""

    def before_scale(self) -> None:
        """Called before a loss is scaled, the last moment to restore the scale."""

    def on_scale(self, scaler: Any, raw: Tensor, scaled: Tensor) -> None: ...

    def on_scaler_step(self, scaler: Any, optimizer: Any, was_stepped: bool) -> None: ...
