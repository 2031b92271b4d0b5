"""Deep checks: the whole state is checked from time to time, and copied while it is finite.

The check before each step sees the loss and the gradients. A NaN can also reach the parameters, the buffers or the
optimizer's state by another way. A deep check finds it, and the snapshot that follows a good one is what time travel and
a rollback go back to. Both cost a pass over the whole state, so they share a time budget.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Protocol

from torch import Tensor

from ..config import Settings
from ..patches.imports import renew
from ..patches.provenance import provenance
from .discover import find_auxiliaries
from .journal import RunJournal
from .outside_modes import outside_user_code, outside_user_modes
from .ranks.agreement import Ranks
from .ranks.groups import has_world
from .ranks.meetings import DeepCheckVote
from .ranks.shards import note_initial
from .ranks.shared_check import SharedCheck
from .rng import RngMemory
from .saved_state import choose_snapshot
from .state import TrainState
from .window import Failure, Window
from .window_log import WindowLog

__all__ = ["DeepChecks"]

_NUM_FORCED = 32


class _Deferral(Protocol):
    @property
    def is_waiting(self) -> bool: ...


class _Monitor(Protocol):
    def compare_late(self, step: int, windows: list[Window]) -> Failure | None: ...


class _Engine(Protocol):
    """The parts of the engine that are used here."""

    state: TrainState
    settings: Settings
    ranks: Ranks
    shared: SharedCheck
    rng: RngMemory
    log: WindowLog
    journal: RunJournal | None
    snapshot_folder: Path | None
    num_applied: int
    has_world: bool

    def forget_windows(self) -> None: ...

    @property
    def deferral(self) -> _Deferral: ...

    @property
    def monitor(self) -> _Monitor: ...


class DeepChecks:
    """Decides when the state is checked and copied, and does both."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._state = engine.state
        self._is_initialized = False
        self._early: dict[int, int] | None = None
        """The version of each weight at the first snapshot; set while that snapshot is older than the loop."""
        self._due_snapshot: tuple[int, list[tuple[Tensor, int]]] | None = None
        """The step to tag it with, and the tensor versions that were found finite."""
        self._cost = 0.0
        self._last_started = time.perf_counter()
        self.uncompared: list[Window] = []
        """Applied steps whose loss and norm are compared at the next check, which waits for the device anyway."""
        self.can_snapshot = True
        """Whether there is memory, or room on the disk, for a copy of the state."""
        self.is_requested = False
        self._is_routine = False
        """Whether only the clock has asked for the last check."""
        self.num_forced = 0
        """Steps that are still checked one by one, because one of their kind has corrupted the state."""
        self.generation = 0
        """The training that the copies belong to (`TrainState.generation`)."""
        self.has_work = True
        """Whether `before_window` has anything to do; read in every step, so it is an attribute."""

    def request(self) -> None:
        """Check with the next step: a save was refused, or the ranks came to the end of an epoch."""
        self.is_requested = True
        self._state.num_changes += 1

    def force(self) -> None:
        """Check after each of the next steps."""
        self.num_forced = _NUM_FORCED
        self._state.num_changes += 1

    @property
    def must_wait(self) -> bool:
        """Whether a check or a snapshot waits for the verdict of a deferred step."""
        is_wanted = self.is_requested or self._due_snapshot is not None
        return is_wanted and self._engine.deferral.is_waiting

    def agree_on_snapshots(self) -> None:
        """Drop the snapshot unless all ranks have one: they roll back together or not at all."""
        if not self._engine.ranks.all(self.can_snapshot):
            self.can_snapshot = False
            self._state.snapshot.drop()
            self._engine.log.clear()

    def vote(self) -> DeepCheckVote:
        """Whether this rank wants a check after this step, by its clock and its memory."""
        engine = self._engine
        elapsed = time.perf_counter() - self._last_started
        return DeepCheckVote.of(
            self.is_requested, engine.log, self._cost, engine.settings.budget, elapsed
        )

    @outside_user_modes
    def initialize(self) -> None:
        """Before the first step: note what is not finite already, and take the first snapshot."""
        engine, state = self._engine, self._state
        engine.has_world = has_world()
        if engine.has_world:
            engine.ranks.mark()
        if self._is_initialized and not self._is_start_outdated():
            return
        self._is_initialized, self._early = True, None
        auxiliaries = state.take_auxiliaries() or find_auxiliaries(sys._getframe(1))
        engine.rng.watch(auxiliaries.generators)
        state.adopt_averages([*provenance.averages, *auxiliaries.averages])
        state.adopt_companions(auxiliaries, set(), engine.num_applied)
        note_initial(state)
        folder = engine.ranks.own_folder(engine.snapshot_folder)
        self.can_snapshot = choose_snapshot(state, engine.settings.snapshot_ram_share, folder)
        state.buffers.copy()
        if self.can_snapshot:
            self._cost = state.take_snapshot(0)
        self._last_started = time.perf_counter()

    def reinitialize(self, is_opening: bool = False) -> None:
        """Start again with a model that was found just now.

        `is_opening`: a window is being opened, which initializes by itself.
        """
        self._state.num_changes += 1
        if self._engine.num_applied == 0:
            self._is_initialized, self._early = False, None
            self.has_work = True
            if not is_opening:
                self.initialize()
                self._early = _weight_versions(self._state)
            return
        # A rollback has to restore the new model as well, so it cannot go back beyond this step.
        self._state.buffers.copy()
        if self._engine.ranks.is_together:
            self.request()
        elif (
            self.generation == self._state.generation
        ):  # else `before_window` copies everything anew
            self.run(0)

    def _is_start_outdated(self) -> bool:
        """Whether the state has to be copied again: the loop shows itself only after its first forward.

        If weights were loaded after the snapshot, it is dropped; the next one follows soon.
        """
        early, self._early = self._early, None
        if early is None or not self._state.buffers.have_moved():
            return early is not None
        if early == _weight_versions(self._state):
            self._state.retake_small()
        else:
            self._state.snapshot.drop()
            self.request()
        return False

    def before_window(self) -> None:
        """Bring the copies up to date, with all that the loop did after its step (schedule, averages)."""
        if self._early is not None:  # rates, schedules, weights may have been set since then
            self._early, self._is_initialized = None, False
        if self.generation != self._state.generation:
            self._forget_gone()
        if not self._is_initialized:
            self.initialize()
        if self._due_snapshot is not None or provenance.has_averages:
            self._take_due_snapshot()
        is_open = self._due_snapshot is not None or self._early is not None
        self.has_work = is_open or not self._is_initialized

    def _forget_gone(self) -> None:
        """An optimizer was deleted, and perhaps its model: copy everything anew."""
        engine = self._engine
        if engine.deferral.is_waiting:  # its steps may have to be repeated from the old copies
            self.request()
            return
        self.generation, self._is_initialized = self._state.generation, False
        self._state.forget_gone()
        engine.rng.forget_others()
        engine.log.forget()
        self.forget_due()

    @outside_user_modes
    def _take_due_snapshot(self) -> None:
        engine = self._engine
        if provenance.has_averages and self._state.adopt_averages(provenance.averages):
            self._due_snapshot = self._due_snapshot or (engine.num_applied, [])
        if self._due_snapshot is not None and not engine.ranks.is_together:
            start = time.perf_counter()
            (tag, versions), self._due_snapshot = self._due_snapshot, None
            is_finite = self._state.is_still_finite(versions)
            is_good_time = engine.log.may_begin_anew(self._is_routine)
            if is_finite and self.can_snapshot and is_good_time:
                self._state.take_snapshot(tag)
                engine.log.begin_anew()
            self._cost += time.perf_counter() - start

    def forget_due(self) -> None:
        """The training was rolled back: what was checked is gone."""
        self._due_snapshot = None
        self._state.num_changes += 1
        self.uncompared.clear()
        self._engine.log.release_all()

    @property
    def is_quiet(self) -> bool:
        """Whether the next window needs no work here, and its end none but a look at the clock."""
        is_old = self.generation != self._state.generation
        return not (self.has_work or is_old or self.is_requested or self.num_forced)

    def is_due(self) -> bool:
        """Whether to check after this step; each call counts as one step."""
        engine = self._engine
        self._is_routine = False
        if engine.ranks.is_together:
            return engine.shared.take_agreed_deep_check()
        if self.is_requested:
            return True
        if self.num_forced:
            self.num_forced -= 1
            return True
        if self.can_snapshot and engine.log.is_full():
            return True
        elapsed = time.perf_counter() - self._last_started
        is_new = bool(engine.log) or not self.can_snapshot
        self._is_routine = is_new and self._cost <= engine.settings.budget * elapsed
        return self._is_routine

    @outside_user_modes
    def run(self, step: int) -> Failure | None:
        """Check parameters, buffers and optimizer state; if all are finite, a snapshot is due.

        With several ranks all of them have to call it, since a snapshot is for all or for none.
        """
        engine, start = self._engine, time.perf_counter()
        renew()
        self.is_requested = False
        bad = self._state.bad_state()
        if engine.ranks.any(bool(bad)):
            own = Failure(bad[0][0], step, name=bad[0][1]) if bad else None
            return engine.ranks.agree_on_bad(own, step, "parameter")
        if engine.journal is not None:
            engine.journal.deep(step)
        uncompared, self.uncompared = self.uncompared, []
        spike = engine.monitor.compare_late(step, uncompared)
        if spike is not None:
            return spike
        if engine.ranks.is_together:
            self._cost = time.perf_counter() - start
            if (
                self.can_snapshot
            ):  # here all ranks are at the same step; they open windows on their own
                self._cost += self._state.take_snapshot(step + 1)
                engine.log.begin_anew()
        else:
            self._due_snapshot, self.has_work = (step + 1, self._state.versions()), True
            self._state.num_changes += 1
            self._cost = time.perf_counter() - start
        self._last_started = time.perf_counter()
        return None


@outside_user_code
def _weight_versions(state: TrainState) -> dict[int, int]:
    """The version counter of each parameter and moment, by id."""
    tensors = (t for _, t in (*state.parameters(), *state.optimizer_state()))
    return {id(t): t._version for t in tensors if not t.is_inference()}
