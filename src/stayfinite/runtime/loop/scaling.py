"""A loop's GradScaler: the loss before scaling, and steps that the scaler skips."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from ..engine import Engine
from ..window import Failure, Window

__all__ = ["Scaling"]


class Scaling:
    """Nothing of the loop is kept alive."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.pair: tuple[weakref.ref[Tensor], weakref.ref[Tensor]] | None = None
        """The last loss before and after it was scaled."""

    def note(self, scaler: Any, raw: Tensor, scaled: Tensor) -> None:
        self._engine.state.add_scaler(scaler)
        is_on = scaler.is_enabled()
        self.pair = (weakref.ref(raw), weakref.ref(scaled)) if is_on else None
        self._engine.state.num_changes += is_on

    def unscaled(self, loss: Tensor) -> Tensor:
        """Without its graph; the loss itself where no scaler has made it."""
        if self.pair is not None:
            raw, scaled = self.pair[0](), self.pair[1]()
            if scaled is loss and raw is not None:
                return raw.detach()
        return loss.detach()

    def check(self, window: Window, optimizer: Any) -> Failure | None:
        """Whether this step may be applied."""
        engine = self._engine
        found = vars(optimizer).get("found_inf")
        if found is not None and found.item():
            # A fused optimizer under a scaler is called even so, and skips by itself.
            return self.failure_of_skip(window)
        if self.pair is None or window.norm is not None:
            return engine.check(window, optimizer)
        # The scaler has passed the gradients; the losses are left.
        if engine.shared.is_shared(optimizer):
            return engine.shared.check(window, optimizer, is_scaled=True) or engine.see(window)
        return engine.explain(window, []) or engine.see(window)

    def failure_of_skip(self, window: Window) -> Failure:
        """The scaler leaves this step out: because of its scale, or was the loss bad before?"""
        own = self._engine.ranks.agree_on_bad(self._engine.explain(window, []), window.step)
        return own or Failure("scaler_skip", window.step)

    def passes_by(self) -> bool:
        """Whether one more skip is what a scaler does while it finds its scale."""
        return self._engine.scale_watch.passes_by(self._engine.state.scale() or 1.0)
