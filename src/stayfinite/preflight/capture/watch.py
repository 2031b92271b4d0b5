"""Watches the first steps of a script's loop: its loaders, and the batches per step."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ...runtime.discover import reachable_modules
from ...runtime.state import TrainState
from ..probes import Step
from ..runner.probe_runner import loss_nodes

__all__ = ["LoopWatch", "criteria", "is_in", "no_change"]


@dataclass
class Iteration:
    """The batches between two optimizer steps."""

    items: list[tuple[Any, Any]] = field(default_factory=list)
    """(loader, batch), in the order in which they were drawn."""
    num_draws: int = 0
    num_backward: int = 0
    num_steps: int = 0
    losses: list[Tensor] = field(default_factory=list)
    norm: Tensor | None = None

    def draws_from(self, loader: Any) -> bool:
        return is_in(loader, [each for each, _ in self.items])

    def loaders(self) -> list[Any]:
        """Each loader once, in the order of their first batches."""
        found: list[Any] = []
        for loader, _ in self.items:
            if not is_in(loader, found):
                found.append(loader)
        return found

    def batch_of(self, loader: Any) -> Any:
        """The first batch that was drawn from it."""
        return next(batch for each, batch in self.items if each is loader)


class LoopWatch:
    """Records the steps that the loop makes on its own."""

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self.iteration = Iteration()
        self.steps: list[Step] = []
        self.loaders: list[Any] = []
        """The loaders whose batches are trained on."""
        self.batches: list[Any] = []
        self.loss_ops: tuple[str, ...] = ()
        self.num_batches = 0
        self.per_step = 1
        """Batches of each loader in a step: more than one under gradient accumulation."""
        self.lag = 0
        """How many batches the loop fetches ahead."""
        self._unused: list[tuple[Any, Any]] = []
        """Batches of other loaders since the step; a backward shows that they are trained on."""

    @property
    def is_loaderless(self) -> bool:
        return not self.loaders and not self.iteration.items

    @property
    def has_kept_batches(self) -> bool:
        """It trains on and on without asking its loaders: `itertools.cycle` gives it what it kept."""
        iteration = self.iteration
        return bool(self.loaders) and not iteration.items and iteration.num_backward > 1

    def drew(self, loader: Any, batch: Any) -> None:
        """Called when the loop has received a batch."""
        self.num_batches += 1
        if not torch.is_grad_enabled():
            return  # a validation, though it may stop before its loader ends (Lightning's sanity check)
        iteration = self.iteration
        if iteration.num_steps and not iteration.draws_from(loader):
            others = [(each, b) for each, b in self._unused if each is not loader]
            self._unused = [*others, (loader, batch)]
            return
        if not iteration.num_backward:
            iteration.items = [(each, b) for each, b in iteration.items if each is not loader]
        iteration.items.append((loader, batch))
        iteration.num_draws += 1

    def loader_ended(self, loader: Any, num_batches: int) -> None:
        """Batches that were all drawn before any was used are not a step's: a list of the script's,
        or a validation before the training."""
        iteration = self.iteration
        if num_batches > 1 and not iteration.num_backward:
            iteration.items = [(each, b) for each, b in iteration.items if each is not loader]
            iteration.num_draws = len(iteration.items)

    def asks(self, loader: Any) -> None:
        """The loop asks for a batch: the step on its last one may be over."""
        if self.iteration.num_steps and self.iteration.draws_from(loader):
            self.close()

    def close(self) -> None:
        """One step is over."""
        iteration = self.iteration
        if not iteration.items:
            self.iteration = Iteration()
            return
        self.loaders = iteration.loaders()
        self.per_step = sum(each is self.loaders[0] for each, _ in iteration.items)
        if not self.steps:
            self.lag = max(iteration.num_draws // len(self.loaders) - self.per_step, 0)
        parts = [iteration.batch_of(loader) for loader in self.loaders]
        self.batches.append(parts[0] if len(parts) == 1 else tuple(parts))
        self._unused = []
        self._note_step(self.per_step)

    def close_loaderless(self, batch: Any) -> None:
        """One step of a loop without a loader is over; `batch` is what its model was called with."""
        if batch is not None:
            self.batches.append(batch)
        self._note_step(1)

    def _note_step(self, num_batches: int) -> None:
        iteration, self.iteration = self.iteration, Iteration()
        loss = float(iteration.losses[-1]) if iteration.losses else None
        norm = float(iteration.norm) if iteration.norm is not None else None
        self.steps.append(Step(loss, norm, self._state.lrs(), num_batches))

    def saw_backward(self, loss: Tensor) -> None:
        if self._unused:  # another loader's batch turns out to be trained on
            unused = self._unused
            if self.iteration.num_steps:
                self.close()
            self.iteration.items, self._unused = unused, []
            self.iteration.num_draws = len(unused)
        self.loss_ops = self.loss_ops or loss_nodes(loss)
        self.iteration.num_backward += 1
        if loss.numel() == 1:
            self.iteration.losses.append(loss.detach())

    def saw_gradients(self, scale: float) -> None:
        dense = [g for _, g in self._state.grads() if g.layout == torch.strided]
        if dense:
            self.iteration.norm = torch.nn.utils.get_total_norm(dense) / scale


def criteria(frame: FrameType | None) -> list[nn.Module]:
    """Loss modules reachable from the script's running functions."""
    within = [m for _, outer in reachable_modules(frame) for m in outer.modules()]
    return [m for m in within if "loss" in type(m).__name__.lower()]


def no_change(state: TrainState, calls: list[Any]) -> str:
    """Why a loop without a loader, whose model was called with these, can be given no other batch; "" for none."""
    loop = "the loop takes its batches from no loader"
    for things, name in ((state.optimizers, "optimizers"), (state.roots, "models")):
        if len(things) > 1:
            return f"{loop} and has {len(things)} {name}: no batch can be changed"
    return "" if calls else f"{loop} and never calls its model as a whole"


def is_in(wanted: Any, found: list[Any]) -> bool:
    """By identity: loaders may compare in their own ways."""
    return any(each is wanted for each in found)
