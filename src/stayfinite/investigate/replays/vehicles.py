"""The vehicles that replay a step by calling a function again: the guard's, the optimizer's closure, a framework's.

A vehicle runs a `Replay` in the sandbox, and restores the gradients and random numbers of the training afterwards.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import UsageError
from ...putting_back import put_back
from ...runtime.engine import Engine
from ...runtime.frames import bad_tensors
from ...runtime.ranks.groups import (
    has_flat_shards,
    has_memory,
    prepare_for_backward,
    unsynced,
    without_sync,
    wrappers_over,
)
from ...runtime.ranks.shards import begin_anew
from ...runtime.ranks.talk import OthersBrokeOff
from ...runtime.step.parts import StepParts
from ...runtime.window import BatchRef, Replay, ReplayResult, Window
from ...sandbox.compute import computing_only
from ..body.scene import Scene, scenes_of_frame
from .changed_source import NotRunnable
from .detour import Detour
from .frameworks import FrameworkStep, unlogged
from .rank_trace import NeedsOthers, RankTrace, Silence
from .replay import ActiveReplay, ReplayDecided
from .tracing import eager_stance

__all__ = [
    "ClosureVehicle",
    "FrameworkVehicle",
    "NoVehicle",
    "StepVehicle",
    "Vehicle",
    "refusing_vehicle",
]

_FLAT_SHARDS = (
    "a step of FullyShardedDataParallel cannot be computed again, so the origin was not traced; with `fully_shard` "
    "it can"
)
_OURS = tuple(
    f"{Path(__file__).parents[1] / room}{os.sep}"
    for room in ("investigate", "locate", "runtime", "detect")
)


class Vehicle:
    """Runs replays of one training."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.refused: list[str] = []
        """What the code that was replayed wanted to do, and was not let."""
        self.why = ""
        """Why nothing can be computed again, where that is known beforehand."""

    def can_run(self, window: Window) -> bool:
        """Whether this window can be computed again; without a loader, perhaps with other data."""
        return True

    def can_repeat(self, window: Window) -> bool:
        """Whether it can be computed again with exactly the same data and gradients."""
        return not any(map(has_memory, self.engine.ranks.wrappers)) and self.can_run(window)

    @property
    def has_effects(self) -> bool:
        """Whether the loop's body has side effects besides training, which are not undone."""
        return False

    @property
    def scene(self) -> Scene | None:
        """The current position of the loop whose statements are run."""
        return None

    def scenes(self) -> list[Scene]:
        """The functions of the script that are running at the step, innermost first."""
        return scenes_of_frame(sys._getframe(1))

    def data(self) -> Iterable[tuple[str, Tensor]]:
        """The tensors from which a loop without a loader makes its batches, by variable name."""
        return ()

    def extended(self) -> Vehicle | None:
        """A vehicle that computes more of the same iteration, or None."""
        return None

    def run(self, wanted: Replay) -> ReplayResult:
        active = ActiveReplay(self.engine, wanted)
        is_quiet = isinstance(wanted.trace, RankTrace) and wanted.trace.is_quiet
        state, ranks = self.engine.state, self.engine.ranks
        if (ranks.has_diverged and not is_quiet) or not self.can_run(wanted.window):
            return self._not_run(active)
        is_alone = is_quiet or ranks.is_apart
        stepped = wrappers_over(ranks.wrappers, filter(wanted.window.is_of, state.optimizers))
        if self._would_harm(wanted, is_alone):
            return self._not_run(active)
        ranks.begin_replay()
        put_grads = state.take_grads()
        self.engine.replay = active
        try:
            with (
                without_sync(ranks.wrappers, stepped) if is_alone else contextlib.nullcontext(),
                Silence() if ranks.is_apart else contextlib.nullcontext(),  # type: ignore[no-untyped-call]
                Detour(ranks.talk.copies) if ranks.is_on else contextlib.nullcontext(),
                computing_only() as report,
                self._unlogged(),
                eager_stance(),
                torch.enable_grad(),
            ):
                try:
                    with _changed(wanted), _at_failed_weights(wanted), active:
                        self._compute(active)
                except ReplayDecided:
                    pass
                except (NeedsOthers, NotRunnable, OthersBrokeOff):
                    active.result.is_complete = False
                    active.is_broken = True
                except UsageError:
                    raise
                except (Exception, SystemExit) as error:  # scripts exit on NaN, too
                    if _is_our_own(error):
                        raise
                    self._on_exception(active, error)
            self.refused += [r for r in report.refused if r not in self.refused]
        finally:
            self.engine.replay = None
            put_back(active.end, put_grads)
        if ranks.is_on and ranks.end_replay(active.is_broken):
            active.result.is_complete = False
            begin_anew(state.roots.values(), [*stepped, *ranks.waiting])
        prepare_for_backward(ranks.waiting)
        return active.result

    def _not_run(self, active: ActiveReplay) -> ReplayResult:
        """End a replay before it has begun, for all ranks."""
        active.result.is_complete = False
        self.engine.ranks.begin_replay()
        self.engine.ranks.end_replay(is_broken=True)
        return active.result

    def _would_harm(self, wanted: Replay, is_alone: bool) -> bool:
        """Whether a wrapper would be harmed that waits for a backward of the training. A replay may run such a backward; then the
        wrapper takes the training's own for a second one, or leaves its gradients on this rank.
        """
        waiting = self.engine.ranks.waiting
        is_lasting = is_alone or any(m.find_unused_parameters for m in waiting)
        return bool(waiting) and is_lasting and wanted.trace is None

    def _unlogged(self) -> contextlib.AbstractContextManager[None]:
        """Suppress the logging and counting of frameworks."""
        return unlogged()

    def _compute(self, active: ActiveReplay) -> None:
        raise NotImplementedError

    def _as_synced(
        self, active: ActiveReplay, ref: BatchRef
    ) -> contextlib.AbstractContextManager[None]:
        """Exchange gradients exactly as the step did: it affects their rounding."""
        wrappers = self.engine.ranks.wrappers
        is_part = ref.step in active.wanted.window.unsynced or any(map(has_memory, wrappers))
        return unsynced(wrappers) if is_part else contextlib.nullcontext()

    def _on_exception(self, active: ActiveReplay, error: BaseException) -> None:
        """Handle an exception of the replayed code, which is usually caused by a value that is not finite."""
        active.result.is_complete = False
        active.is_broken = True
        if active.is_decided:
            return
        self.engine.state.buffers.restore()  # without what this very forward has written
        bad = self.engine.state.bad_state()
        if bad:
            active.raised(bad)
        elif active.wanted.window.error is not None:
            active.raised_on(bad_tensors(error.__traceback__))


def _changed(wanted: Replay) -> contextlib.AbstractContextManager[None]:
    return wanted.change.installed() if wanted.change else contextlib.nullcontext()


def _at_failed_weights(wanted: Replay) -> contextlib.AbstractContextManager[None]:
    """Move to the weights of the failed evaluation, for an optimizer with a line search."""
    point = wanted.window.search_point
    if point is None or wanted.is_applied:
        return contextlib.nullcontext()
    return point.visited()  # type: ignore[no-any-return]


def _is_our_own(error: BaseException) -> bool:
    """Whether it was raised by stayfinite itself, and not by the replayed code or the sandbox."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = trace.tb_frame.f_code.co_filename if trace is not None else ""
    return raised_in.startswith(_OURS)


class NoVehicle(Vehicle):
    """For steps that cannot be computed again."""

    def __init__(self, engine: Engine, why: str = "") -> None:
        super().__init__(engine)
        self.why = why

    def can_run(self, window: Window) -> bool:
        return False


def refusing_vehicle(engine: Engine) -> Vehicle | None:
    """A vehicle that replays nothing, if no step of this training can be computed again."""
    if engine.settings.replay == "off":
        return NoVehicle(engine)
    if has_flat_shards(engine.state.roots.values()):
        return NoVehicle(engine, why=_FLAT_SHARDS)
    return None


class StepVehicle(Vehicle):
    """`guard.step`: the guard owns the closure and calls it again."""

    def __init__(self, engine: Engine, parts: StepParts) -> None:
        super().__init__(engine)
        self._parts = parts

    def _unlogged(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # no framework runs this loop

    def can_run(self, window: Window) -> bool:
        return all(b.loss_fn is not None for b in window.batches)

    def _compute(self, active: ActiveReplay) -> None:
        wanted = active.wanted
        if not self._parts.schedule.is_ours:
            self.engine.state.set_lrs(wanted.window.lrs)
        for ref in wanted.window.batches:
            active.step = ref.step
            self._run_batch(active, ref)

    def _run_batch(self, active: ActiveReplay, ref: BatchRef) -> None:
        parts, wanted = self._parts, active.wanted
        optimizer, scaler = parts.optimizer, parts.scaler

        def evaluate() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = parts.loss(ref.loss_fn, ref.value)
            scaled = scaler.scale(loss) if scaler is not None else loss
            active.on_backward(scaled, loss.detach(), scaled.backward)
            if scaler is not None:
                scaler.unscale_(optimizer)
                active.check_gradients()
            active.agree()
            if active.is_decided:
                raise ReplayDecided
            if parts.clip_norm is not None:
                moved = [p for g in optimizer.param_groups for p in g["params"]]
                torch.nn.utils.clip_grad_norm_(moved, parts.clip_norm)
            return loss

        try:
            if parts.needs_closure and wanted.is_applied:
                optimizer.step(evaluate)
                return
            evaluate()
            if wanted.is_applied:
                active.on_optimizer_step(optimizer, optimizer.step)
                parts.schedule.in_replay()
                if scaler is not None and not active.is_decided:
                    scaler.update()
        finally:
            if scaler is not None:
                scaler._per_optimizer_states.clear()


class ClosureVehicle(Vehicle):
    """The closure that the loop passed to its optimizer, which is meant to be called again."""

    def __init__(self, engine: Engine, closure: Callable[[], Any], own: Window) -> None:
        super().__init__(engine)
        self._closure = closure
        self._own = own

    def can_run(self, window: Window) -> bool:
        return window is self._own

    def _compute(self, active: ActiveReplay) -> None:
        if active.wanted.is_applied:
            self._apply(active)
            return
        self._closure()
        active.check_gradients()
        if self._own.search_point is None and active.num_backward != self._own.num_backward:
            active.result.is_complete = False  # the optimizer was at a later evaluation

    def _apply(self, active: ActiveReplay) -> None:
        """The whole step of an optimizer with a search; others have been at weights of which nothing is known."""
        optimizers, evaluation = list(self.engine.state.optimizers), self._own.evaluation
        if evaluation is None or [type(o) for o in optimizers] != [torch.optim.LBFGS]:
            active.result.is_complete = False
            return
        optimizers[0].step(evaluation)


class FrameworkVehicle(Vehicle):
    """The function of a framework that computes the loss of a batch, such as `training_step`."""

    def __init__(self, engine: Engine, step: FrameworkStep) -> None:
        super().__init__(engine)
        self._step = step

    def can_run(self, window: Window) -> bool:
        return all(len(b.items) == 1 for b in window.batches)

    def _compute(self, active: ActiveReplay) -> None:
        refs = active.wanted.window.batches
        if active.wanted.is_applied and not self._step.makes_backward:
            active.result.is_complete = False
            return
        with self._step.kept():
            for i, ref in enumerate(refs):
                active.step = ref.step
                if i and ref.rng is not None:
                    ref.rng.restore()
                with self._as_synced(active, ref):
                    loss = self._step.compute(ref.value)
                if loss is None or self._step.makes_backward:
                    continue  # `training_step` may skip a batch
                loss = loss / len(refs) if len(refs) > 1 else loss
                with self._as_synced(active, ref):
                    active.on_backward(loss, loss.detach(), loss.backward)
        active.check_gradients()
