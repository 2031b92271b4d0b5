"""The interface of those who listen to a training's calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from .firewall import Firewall

__all__ = ["Ordinary", "TrainingListener"]


class Ordinary(Protocol):
    """The short way of a listener: where it answers False or None, nothing was noted, and the listener's own
    function of the same purpose has to look."""

    def is_over_by(self, loader: Any) -> bool:
        """Instead of `before_batch`."""

    def takes_batch(self, loader: Any, batch: Any, indices: Any) -> bool: ...

    def takes_backward(self, loss: Any) -> bool:
        """Instead of `before_backward`."""

    def may_step(self, optimizer: Any) -> bool | None: ...


class TrainingListener(Protocol):
    """Who drives a loop. `on_…` that take a `call` make it, or do not."""

    @property
    def thread_id(self) -> int:
        """Calls of other threads are none of its business."""

    @property
    def is_replaying(self) -> bool: ...

    @property
    def firewall(self) -> Firewall: ...

    @property
    def ordinary(self) -> Ordinary | None:
        """Who takes what is in nearly every healthy step, in one call each; None: nobody."""

    @property
    def wants_gradients(self) -> bool:
        """Whether they are looked at after a backward, because no torch optimizer has turned up."""

    def before_backward(self, loss: Tensor) -> bool | None:
        """Whether its graph is to stay for a replay."""

    seed: Any
    """What that backward is to begin with instead of 1, or None; taken from here."""

    def after_backward(self) -> None: ...

    def replay_backward(
        self, loss: Tensor, call: Callable[[], Any], keeping: Callable[[], Any]
    ) -> Any:
        """`keeping`: the same call with a graph that can be gone through again."""

    def on_clip(self, norm: Tensor) -> None: ...

    def on_optimizer(self, optimizer: Any) -> None: ...

    def on_scheduler(self, scheduler: Any) -> None: ...

    def owns(self, optimizer: Any) -> bool: ...

    def has_batch(self) -> bool:
        """Whether a batch was drawn that the loop has not left behind: of two that own an optimizer (a
        guard of the last epoch that nobody has closed), the step is this one's."""

    def may_step(self, optimizer: Any) -> bool: ...

    def undo_unless_fine(self, optimizer: Any) -> Callable[[], None] | None: ...

    def before_replayed_step(self, optimizer: Any) -> Callable[[], None] | None: ...

    def after_replayed_step(self, optimizer: Any) -> None: ...

    def on_step_done(self, optimizer: Any, is_done: bool) -> None: ...

    def special_step(self, optimizer: Any, closure: Any, call: Callable[[Any], Any]) -> Any: ...

    def on_foreign_step(self) -> None: ...

    def on_step_elsewhere(self, optimizer: Any) -> None:
        """The one method that is called in another thread."""

    def before_scale(self) -> None:
        """A loss is about to be scaled: the last moment to put a scale back."""

    def on_scale(self, scaler: Any, raw: Tensor, scaled: Tensor) -> None: ...

    def on_scaler_step(self, scaler: Any, optimizer: Any, was_stepped: bool) -> None: ...
