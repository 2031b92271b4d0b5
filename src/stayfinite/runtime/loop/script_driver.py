"""The driver of an unmodified script, which also finds the models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from ...patches.imports import renew
from ..discover import Reach, find_models, find_schedulers, find_stateful
from ..engine import Engine
from .driver import LoopDriver
from .manual_updates import ManualUpdates

__all__ = ["ScriptDriver"]

_MOST_VAIN = 4
"""A process that makes one optimizer after the other for tensors of no model (a test suite, a fit in a loop) is searched
for models only when its loops begin.
"""


class ScriptDriver(LoopDriver):
    """The driver of the trainings in a script's main thread; other threads are not driven."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, counts_every_batch=False)
        self._known = 0
        """The version of the list of optimizers at the last search for models."""
        self._has_searched_in_loop = False
        self._num_vain = 0
        """How many new optimizers in a row had only tensors that no model holds."""
        self.on_new_optimizer: Callable[[Any], None] = lambda optimizer: None
        self.manual_updates: ManualUpdates | None = ManualUpdates(self)
        """None as soon as there is a torch optimizer."""
        self._is_grad = False
        """Whether the current `torch.autograd.grad` belongs to a training."""

        self._elsewhere: dict[int, Any] = {}
        """Optimizers that another thread steps, to be released before the next window."""

    @property
    def wants_gradients(self) -> bool:
        is_asked = self.manual_updates is not None or self.loaderless.is_close
        return is_asked and not self.is_internal and not self.is_over

    def on_optimizer(self, optimizer: Any) -> None:
        renew()
        if self.manual_updates is not None:
            self.manual_updates.close()
            self.manual_updates = None
        self.on_new_optimizer(optimizer)
        super().on_optimizer(optimizer)
        # A loop without a loader does not announce its first forward, so a quick search is done now.
        moved = [p for o in self.state.optimizers for g in o.param_groups for p in g["params"]]
        is_plain = not any(isinstance(p, nn.Parameter) for p in moved)
        if not is_plain or self._num_vain < _MOST_VAIN:
            self._find_models(moved=moved)
            self._num_vain = 0 if self.state.roots or not is_plain else self._num_vain + 1
        self._has_searched_in_loop = False  # variables assigned after this call are found later

    def on_trained(self, trained: Any) -> None:
        """The tensors of a training without a torch optimizer were found."""
        self.state.add_optimizer(trained)
        self._find_models()

    def before_backward(self, loss: Tensor) -> bool | None:
        if self.manual_updates is not None and self.wants_gradients:
            self.manual_updates.begin(loss)
        return super().before_backward(loss)

    def after_backward(self) -> None:
        if self.loaderless.is_close:
            super().after_backward()
        if self.manual_updates is not None:
            self.manual_updates.check_gradients()

    def before_grad(self, loss: Tensor, inputs: Sequence[Any]) -> None:
        """Before `torch.autograd.grad`, in a training without a torch optimizer."""
        self._is_grad = self.manual_updates is not None and self.manual_updates.begin_grad(
            loss, inputs
        )
        if self.manual_updates is not None and self._is_grad:
            super().before_backward(loss)

    def after_grad(self, grads: Sequence[Any]) -> None:
        if self.manual_updates is not None and self._is_grad:
            self.manual_updates.check_results(grads)

    def replay_grad(self, loss: Tensor, call: Callable[[], Any]) -> Any:
        replay = self.engine.replay
        if replay is None or self.manual_updates is None:
            return call()
        results = call()
        replay.check_results(loss, [g for g in results if isinstance(g, Tensor)])
        return results

    def on_func_grad(
        self, given: Any, results: tuple[Any, Any], call: Callable[[], tuple[Any, Any]]
    ) -> None:
        """After `torch.func.grad` or `grad_and_value`, in a training without a torch optimizer."""
        if self.manual_updates is not None:
            self.manual_updates.on_func_grad(given, results, call)

    def before_window(self) -> None:
        """Search for models if there is a new optimizer, and when the loop begins.

        A loss with a state may be made after the optimizer.
        """
        if self._elsewhere:
            self.release_others()
        optimizers = self.state.optimizers
        if optimizers.version != self._known or not self._has_searched_in_loop:
            self._has_searched_in_loop = len(optimizers) > 0
            self._find_models(is_opening=True)
        else:
            self.state.auxiliaries = None

    def on_step_elsewhere(self, optimizer: Any) -> None:
        """Release an optimizer of this thread if another thread steps it and this one never did."""
        if optimizer in self.state.optimizers and id(optimizer) not in self.stepped_here:
            self._elsewhere[id(optimizer)] = optimizer
            self.state.num_changes += 1

    def release_others(self) -> None:
        while self._elsewhere:
            self.state.release(self._elsewhere.popitem()[1])

    def _find_models(self, is_opening: bool = False, moved: Iterable[Tensor] | None = None) -> None:
        optimizers = list(self.state.optimizers)
        self._known = self.state.optimizers.version
        frame = sys._getframe(1)
        for scheduler in find_schedulers(frame) if is_opening else ():
            if any(scheduler.optimizer is o for o in optimizers):
                self.on_scheduler(scheduler)
        reach = Reach(frame, moved)
        self.state.auxiliaries = reach.auxiliaries
        modules = reach.modules
        found = find_models(optimizers, modules)
        others = find_stateful(modules)
        if is_opening:
            ours = {id(m) for _, m in (*found, *others)}
            self.state.adopt_companions(reach.auxiliaries, ours, self.engine.num_applied)
        self._adopt(found, others, is_opening)
        if not is_opening:
            self.state.auxiliaries = None  # the loop's opening searches again, further

    def _adopt(
        self, found: list[tuple[str, Any]], others: list[tuple[str, Any]], is_opening: bool
    ) -> None:
        """Track these models, if one of them is new."""
        known = {id(m) for m in self.state.roots.values()}
        if not found or not any(id(m) not in known for _, m in (*found, *others)):
            return
        alone = len(found) == 1
        self.state.clear_roots()
        for name, model in found:
            self.state.add_root(model, "" if alone else self._unused_name(name, model))
        for name, module in others:
            self.state.add_root(module, self._unused_name(name, module))
        self.engine.deep_checks.reinitialize(is_opening)

    def _unused_name(self, name: str, model: Any) -> str:
        taken = self.state.roots
        wanted = name if name and name != "self" else type(model).__name__
        return wanted if wanted not in taken else f"{wanted}{len(taken)}"
