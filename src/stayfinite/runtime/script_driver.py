"""The driver of an unmodified script: it also has to find the models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..patches.imports import renew
from .discover import find_models, find_stateful
from .engine import Engine
from .loop_driver import LoopDriver

__all__ = ["ScriptDriver"]


class ScriptDriver(LoopDriver):
    """Listens to whatever the script's main thread trains; what other threads do is theirs."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, counts_every_batch=False)
        self._known: tuple[int, ...] = ()
        self._has_trained = False
        self._has_looked_in_loop = False
        self.on_new_optimizer: Callable[[Any], None] = lambda optimizer: None

    def on_optimizer(self, optimizer: Any) -> None:
        renew()
        self.on_new_optimizer(optimizer)
        super().on_optimizer(optimizer)
        self._look_for_models()

    def before_backward(self, loss: Tensor) -> None:
        self._has_trained = True
        super().before_backward(loss)

    def before_window(self) -> None:
        """Models are looked for when an optimizer has turned up since the last look, and when the loop
        begins: a loss with a state of its own may be made later than the optimizer."""
        now = tuple(id(o) for o in self.state.optimizers)
        if now != self._known or not self._has_looked_in_loop:
            self._has_looked_in_loop = bool(now)
            self._look_for_models(is_opening=True)

    def _look_for_models(self, is_opening: bool = False) -> None:
        optimizers = list(self.state.optimizers)
        self._known = tuple(id(o) for o in optimizers)
        frame = sys._getframe(1)
        found = find_models(optimizers, frame)
        others = find_stateful(frame)
        known = {id(m) for m in self.state.roots.values()}
        if not found or not any(id(m) not in known for _, m in (*found, *others)):
            return
        alone = len(found) == 1
        self.state.clear_roots()
        for name, model in found:
            self.state.add_root(model, "" if alone else self._free(name, model))
        for name, module in others:
            self.state.add_root(module, self._free(name, module))
        self.engine.prime_again(is_opening)

    def _free(self, name: str, model: Any) -> str:
        taken = self.state.roots
        wanted = name if name and name != "self" else type(model).__name__
        return wanted if wanted not in taken else f"{wanted}{len(taken)}"
