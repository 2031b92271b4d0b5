"""A loop's GradScaler: the loss before scaling, and steps that the scaler skips."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..engine import Engine
from ..window import Failure, Window

__all__ = ["Scaling"]


class Scaling:
    """Tracks the GradScaler of a loop, without a reference to what belongs to the training."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.pair: tuple[Tensor, weakref.ref[Tensor]] | None = None
        """The last loss before it was scaled, without its graph, and after. The loop may hold only the second: the first is
        a temporary in `scaler.scale(loss / 2).backward()`."""
        self.is_stepping = False
        """Whether the scaler's own `step` runs, which looks at the gradients first."""
        self.before_skip: Callable[[], None] | None = None
        """Restores the scale with which the scaler has left a step out, until the next loss is scaled."""

    def note(self, scaler: Any, raw: Tensor, scaled: Tensor) -> None:
        self._engine.state.add_scaler(scaler)
        is_on = scaler.is_enabled()
        self.pair = (raw.data, weakref.ref(scaled)) if is_on else None
        self._engine.state.num_changes += is_on
        if self._engine.replay is None:
            self.before_skip = None

    def unscaled(self, loss: Tensor) -> Tensor:
        """The unscaled loss, detached."""
        if self.pair is not None and self.pair[1]() is loss:
            return self.pair[0]
        return loss.detach()

    def check(self, window: Window, optimizer: Any) -> Failure | None:
        """The reason not to apply this step, or None."""
        engine = self._engine
        found = vars(optimizer).get("found_inf")
        if found is not None and found.item():
            # A scaler calls a fused optimizer in any case, and that skips the step itself.
            return self.failure_of_skip(window)
        if self.pair is None or window.norm is not None or not self.is_stepping:
            return engine.check(window, optimizer)
        # The scaler has checked the gradients, so only the losses are left.
        if engine.shared.is_shared(optimizer):
            return engine.shared.check(window, optimizer, is_scaled=True) or engine.compare(window)
        return engine.explain(window, []) or engine.compare(window)

    def failure_of_skip(self, window: Window) -> Failure:
        """The failure of a step that the scaler skips: a bad loss, or only its scale."""
        own = self._engine.ranks.agree_on_bad(self._engine.explain(window, []), window.step)
        return own or Failure("scaler_skip", window.step)

    def leaves_out(self, window: Window, failure: Failure) -> bool:
        """Note the scale with which the scaler leaves this step out; whether that is normal while it adapts."""
        self.before_skip = self._engine.state.capture_small()
        is_normal = self._engine.scale_watch.passes_by(self._engine.state.scale() or 1.0)
        if is_normal:
            window.failure = failure
        return is_normal

    def is_passed_by(self, failure: Failure) -> bool:
        """Whether a plain `optimizer.step()` would apply what the scaler has left out."""
        return failure.symptom == "scaler_skip" and not self.is_stepping
