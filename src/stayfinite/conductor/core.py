"""The engine under all three forms: the sentinel's check, the budget, incidents and their action."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..config import Settings
from ..detect import ScaleWatch
from ..observe.batches import batch_bytes
from ..observe.counters import own_generators
from ..observe.rng import RngMemory, RngState
from ..observe.witness import witness
from ..records import Incident, StepRecord
from ..recover.policy import Policy
from .journaling import RunJournal
from .keeping import choose_snapshot
from .ranks import (
    DUE,
    NOT_DUE,
    URGENT,
    has_world,
    note_initial,
)
from .recovery import Recovery
from .sentinel import Sentinel, number_of
from .state import TrainState
from .window import Failure, Window

if TYPE_CHECKING:
    from .investigation import Verdict

__all__ = ["Core"]

_MAX_LOG_BYTES = 1 << 29
_SMALL_LOG_BYTES = 1 << 24
_WARY = 32


class Core(Sentinel):
    """Everything that does not depend on who drives the loop."""

    def __init__(self, state: TrainState, settings: Settings, policy: Policy) -> None:
        super().__init__(state, settings)
        self.policy = policy
        self.rng = RngMemory()
        self.history: deque[tuple[Any, ...]] = deque(maxlen=settings.history)
        self.log: list[Window] = []
        """Windows applied since the snapshot, for going back."""
        self._stale: list[Window] = []
        self.incidents: list[Incident] = []
        self.on_incident: Callable[[Incident], Incident] = lambda incident: incident
        self.journal: RunJournal | None = None
        """Set where there is a run folder; without one nothing is journaled."""
        self.scale_watch = ScaleWatch()
        self.recovery = Recovery(self)
        self.snapshot_folder: Path | None = None
        """Where a snapshot goes that does not fit into memory; None is the system's own place."""
        self.num_applied = 0
        self._is_primed = False
        self._cost = 0.0
        self._deep_started = time.perf_counter()
        self._log_bytes = 0
        self._has_room = True
        self._due: tuple[int, list[tuple[Tensor, int]]] | None = None
        self._unseen: list[Window] = []
        self._is_deep_wanted = False
        self._num_wary = 0
        """Steps that are still looked at one by one, because one like them has spoiled the state."""

    def meet(self) -> None:
        if not self.ranks.all(self._has_room):  # going back is for all ranks or for none
            self._has_room = False
            self.state.snapshot.drop()
            self.log.clear()

    def wish(self) -> int:
        """Whether this rank wants a deep check after this step: by its clock, its memory."""
        is_full = len(self.log) + 1 >= self.settings.max_batches
        if self._is_deep_wanted or is_full or self._log_bytes > _MAX_LOG_BYTES:
            return URGENT
        elapsed = time.perf_counter() - self._deep_started
        return DUE if self._cost <= self.settings.budget * elapsed else NOT_DUE

    def want_deep_check(self) -> None:
        """Ranks come to the end of an epoch at different times: look with the next step they share."""
        self._is_deep_wanted = True

    # -- healthy steps ------------------------------------------------------------------------

    def prime(self) -> None:
        """Before the first step: what is bad already, and the first snapshot."""
        self._has_world = has_world()
        if self._has_world:
            self.ranks.mark()
        if self._is_primed:
            return
        self._is_primed = True
        self.rng.watch(own_generators())
        self.state.adopt_averages(witness.averages)
        note_initial(self.state)
        share = self.settings.snapshot_ram_share
        self._has_room = choose_snapshot(
            self.state, share, self.ranks.own_folder(self.snapshot_folder)
        )
        self.state.shadow_buffers()
        if self._has_room:
            self._cost = self.state.take_snapshot(0)
        self._deep_started = time.perf_counter()

    def open(self) -> RngState:
        """A window opens: the snapshot that the last deep check allowed is taken now, with all that
        the loop did after its step (schedule, averages) in it. Returns the random state."""
        self._has_world = has_world()
        if self._has_world:
            self.ranks.mark()
        if not self._is_primed:
            self.prime()
        if witness.has_averages and self.state.adopt_averages(witness.averages):
            self._due = self._due or (self.num_applied, [])
        if self._due is not None and not self.ranks.is_on:
            start = time.perf_counter()
            (tag, versions), self._due = self._due, None
            if self.state.is_still_finite(versions) and self._has_room:
                self.state.take_snapshot(tag)
                self._drop_log()
            self._cost += time.perf_counter() - start
        self.state.shadow_buffers()
        return self.rng.capture()

    def _take_snapshot(self, tag: int) -> None:
        if self._has_room:
            self._cost += self.state.take_snapshot(tag)
            self._drop_log()

    def _drop_log(self) -> None:
        """Small ones are let go one by one as new ones come: Python looks for garbage whenever more
        has been made than let go, and with torch loaded such a look takes milliseconds."""
        self._stale = self.log if self._log_bytes < _SMALL_LOG_BYTES else []
        self.log = []
        self._log_bytes = 0

    def forget_due(self) -> None:
        """The training went back: what was checked is no longer there."""
        self._due = None
        self._log_bytes = 0
        self._unseen.clear()
        self._stale.clear()

    def prime_again(self) -> None:
        """A model turned up: before the first step, all of it counts as the start."""
        if self.num_applied == 0:
            self._is_primed = False
            self.prime()
        else:
            # Going back must put the newcomer back as well, so history starts anew here.
            self.state.shadow_buffers()
            if self.ranks.is_on:
                self.want_deep_check()
            else:
                self.deep_check(0)

    def passes_by_skip(self) -> bool:
        """Whether this skip of the scaler is one more of a row that was looked into already."""
        return self.scale_watch.passes_by(self.state.scale() or 1.0)

    def note_scaler_skip(self, window: Window) -> None:
        """The scaler held a step back; the journal shows it, nobody is alarmed."""
        self.recovery.note_scaler_skip()
        if self.journal is not None:
            self.journal.skipped(self._row(window), "scaler_skip")

    def _row(self, window: Window) -> tuple[Any, ...]:
        """One line of history; tensors by reference, so that nothing syncs."""
        last, scalers = window.batches[-1], self.state.scalers
        loss: Any = window.loss
        if loss is None and window.losses:
            loss = window.losses[-1][1].detach()
        return (
            last.step,
            last.epoch,
            loss,
            window.norm,
            window.lrs,
            _still(getattr(scalers[0], "_scale", None)) if scalers else None,
            window.num_applied > 0,
        )

    def close_healthy(self, window: Window) -> Failure | None:
        """After an applied step: keep it for going back; look deeper when the budget allows."""
        if window.num_applied:
            self.recovery.note_applied()
            self.num_applied += 1
            if window.scenes:
                window.scenes, window.root_call = (), None  # it came to nothing
            if not window.is_seen:
                self._unseen.append(window)  # read where a deep check waits for the device anyway
            row = self._row(window)
            self.history.append(row)
            if self.journal is not None:
                self.journal.step(row)
            if self._has_room:
                if len(self.log) % 64 == 0:
                    size = sum(batch_bytes(b.value) for b in window.batches)
                    self._log_bytes = (len(self.log) + 64) * size
                self.log.append(window)
                if self._stale:
                    self._stale.pop()
                # A clock read every few steps is enough; the interval is in steps' worth of time.
                if len(self.log) % 8 and not (
                    self._is_deep_wanted
                    or self._num_wary
                    or (self._has_world and self.ranks.has_others)
                    or self._is_log_full()
                ):
                    return None
        return self.deep_check(window.step) if self._is_deep_due() else None

    def _is_log_full(self) -> bool:
        return len(self.log) >= self.settings.max_batches or self._log_bytes > _MAX_LOG_BYTES

    def _is_deep_due(self) -> bool:
        if self.ranks.is_on:
            is_due, self._is_deep_agreed = self._is_deep_agreed, False
            return is_due
        if self._is_deep_wanted:
            return True
        if self._num_wary:
            self._num_wary -= 1
            return True
        if not self._has_room:
            elapsed = time.perf_counter() - self._deep_started
            return self._cost <= self.settings.budget * elapsed
        if self._is_log_full():
            return True
        elapsed = time.perf_counter() - self._deep_started
        return bool(self.log) and self._cost <= self.settings.budget * elapsed

    def deep_check(self, step: int) -> Failure | None:
        """Parameters, buffers and optimizer state; when all are finite, a new snapshot.

        With several ranks all of them have to call it, since a snapshot is for all or for none.
        """
        start = time.perf_counter()
        self._is_deep_wanted = False
        bad = self.state.bad_state()
        if self.ranks.any(bool(bad)):
            return self.ranks.agree(Failure(bad[0][0], step, name=bad[0][1]) if bad else None)
        if self.journal is not None:
            self.journal.deep(step)
        unseen, self._unseen = self._unseen, []
        spike = self.recovery.look_closer(step, unseen)
        if spike is not None:
            return spike
        if self.ranks.is_on:
            # Here all ranks meet; a window's opening is each one's own.
            self._cost = time.perf_counter() - start
            self._take_snapshot(step + 1)
        else:
            self._due = (step + 1, self.state.versions())
            self._cost = time.perf_counter() - start
        self._deep_started = time.perf_counter()
        return None

    def let_go(self) -> None:
        """Nothing more will be run or looked at."""
        self.ranks.forget()
        self.log.clear()
        self.forget_due()
        self.history.clear()
        self.state.let_go()

    # -- incidents ----------------------------------------------------------------------------

    def records(self) -> tuple[StepRecord, ...]:
        return tuple(
            StepRecord(
                step=step,
                epoch=epoch,
                loss=number_of(loss),
                grad_norm=number_of(norm),
                lr=lr,
                scale=number_of(scale),
                is_applied=applied,
            )
            for step, epoch, loss, norm, lr, scale, applied in self.history
        )

    def conclude(self, verdict: Verdict) -> Incident:
        """What the policy says about it is done; raises where the run must not go on."""
        if self.ranks.has_parted:  # moving this rank's state alone would tear the ranks apart
            assert verdict.incident is not None
            return self.publish(verdict.incident)
        return self.recovery.conclude(verdict)

    def publish(self, incident: Incident) -> Incident:
        """Save it, tell of it, keep it."""
        incident = self._tell(incident)
        self.incidents.append(incident)
        if incident.event.phase == "optimizer" or incident.event.symptom == "buffer":
            self._num_wary = _WARY
        if self.journal is not None:
            self.journal.incident(incident)
        return incident

    def publish_alone(self, incident: Incident) -> Incident:
        """The same for what one rank met by itself: a checkpoint is written or read by one."""
        incident = self.on_incident(incident)
        self.incidents.append(incident)
        if self.journal is not None:
            self.journal.incident(incident)
        return incident

    def _tell(self, incident: Incident) -> Incident:
        """One rank prints it and writes it down; all hold the same."""
        if not self.ranks.is_on:
            return self.on_incident(incident)
        told = self.on_incident(incident).to_json() if self.ranks.is_first else None
        return Incident.from_json(self.ranks.broadcast_from(self.ranks.first, told))


def _still(scale: Any) -> Any:
    """The scaler changes its scale in place; this value stays what it is now, without a sync."""
    if not isinstance(scale, Tensor):
        return scale
    return scale.item() if scale.device.type == "cpu" else scale.clone()
