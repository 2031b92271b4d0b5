"""The engine of all forms: checks each step, remembers what a replay needs, hands bad steps over.

It is small on purpose. While a training is healthy it checks and remembers; when a step has gone bad
it hands the window to the investigation that was given to it, and does what the policy says.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..config import Settings
from ..detect import ScaleWatch
from ..detect.check import StepCheck, bad_rate, number_of
from ..numerics.health import is_finite
from ..patches.imports import renew
from ..patches.provenance import provenance
from ..records import Incident, StepRecord
from ..recover.policy import Policy
from .deferral import Deferral
from .discover import find_beside
from .frames import StepPlace
from .history import Row, records_of, row_of
from .journal import RunJournal
from .known import KnownIncidents
from .ranks.agreement import Ranks
from .ranks.groups import has_world
from .ranks.meetings import Wish
from .ranks.shards import note_initial
from .ranks.shared_check import SharedCheck
from .recovery.carry_out import Recovery
from .rng import RngMemory, RngState
from .saved_state import choose_snapshot
from .state import TrainState
from .step.parts import StepParts
from .unseen import unseen
from .warn.lookout import Lookout
from .window import Failure, RunningReplay, Verdict, Window
from .window_log import WindowLog

__all__ = ["Engine", "Investigate"]

Investigate = Callable[["Engine", Window, Failure], Verdict]

_INF = float("inf")
_WARY = 32


class Engine:
    """Everything that does not depend on who drives the loop."""

    def __init__(
        self, state: TrainState, settings: Settings, policy: Policy, investigate: Investigate
    ) -> None:
        self.state = state
        self.settings = settings
        self.policy = policy
        self.checker = StepCheck(syncs=not settings.deferred)
        self.ranks = Ranks(settings.rank_seconds)
        self.shared = SharedCheck(self)
        self.deferral = Deferral(self, self.shared)
        self.rng = RngMemory()
        self.history: deque[Row] = deque(maxlen=settings.history)
        self.log = WindowLog(settings.max_batches)
        self.incidents: list[Incident] = []
        self.known = KnownIncidents()
        self.on_incident: Callable[[Incident], Incident] = lambda incident: incident
        self.journal: RunJournal | None = None
        """Set where there is a run folder; without one nothing is journaled."""
        self.replay: RunningReplay | None = None
        """The replay under way: backward and optimizer steps go there."""
        self.scale_watch = ScaleWatch()
        self.lookout = Lookout(self)
        self.recovery = Recovery(self)
        self.snapshot_folder: Path | None = None
        """Where a snapshot goes that does not fit into memory; None is the system's own place."""
        self.step_parts: StepParts | None = None
        """What `guard.step` makes its steps of."""
        self.solved: dict[Any, tuple[Any, Any, int]] = {}
        """What was proved to help, by place: for the same failure it is not searched again."""
        self.step_place = StepPlace()
        self.script: str | None = None
        """The file that `stayfinite run` runs; with a guard of one's own, None."""
        self.num_applied = 0
        self._investigate = investigate
        self._is_primed = False
        self._early: dict[int, int] | None = None
        """Set while the first snapshot is older than the loop: how often each weight had been written."""
        self._generation = 0
        self._cost = 0.0
        self._deep_started = time.perf_counter()
        self._has_room = True
        self.has_world = False
        self._due: tuple[int, list[tuple[Tensor, int]]] | None = None
        self._unseen: list[Window] = []
        self._is_deep_wanted = False
        self._num_wary = 0
        """Steps that are still looked at one by one, because one like them has corrupted the state."""

    def meet(self) -> None:
        """The first step that several ranks share: going back is for all of them or for none."""
        if not self.ranks.all(self._has_room):
            self._has_room = False
            self.state.snapshot.drop()
            self.log.clear()

    def wish(self) -> Wish:
        """Whether this rank wants a deep check after this step: by its clock, its memory."""
        elapsed = time.perf_counter() - self._deep_started
        return Wish.of(self._is_deep_wanted, self.log, self._cost, self.settings.budget, elapsed)

    def want_deep_check(self) -> None:
        """Look with the next step: a save was held back, or ranks came to the end of an epoch."""
        self._is_deep_wanted = True
        self.state.num_changes += 1

    @unseen
    def prime(self) -> None:
        """Before the first step: what is bad already, and the first snapshot."""
        self.has_world = has_world()
        if self.has_world:
            self.ranks.mark()
        if self._is_primed and not self._begins_anew():
            return
        self._is_primed, self._early = True, None
        beside = self.state.take_beside() or find_beside(sys._getframe(1))
        self.rng.watch(beside.generators)
        self.state.adopt_averages([*provenance.averages, *beside.averages])
        self.state.adopt_companions(beside, set(), self.num_applied)
        note_initial(self.state)
        folder = self.ranks.own_folder(self.snapshot_folder)
        self._has_room = choose_snapshot(self.state, self.settings.snapshot_ram_share, folder)
        self.state.buffers.copy()
        if self._has_room:
            self._cost = self.state.take_snapshot(0)
        self._deep_started = time.perf_counter()

    def _forget_gone(self) -> None:
        """An optimizer is gone, and perhaps its model: here, between two steps, all is copied anew."""
        if self.deferral.is_waiting:  # for steps that may have to be made again from those copies
            self.want_deep_check()
            return
        self._generation, self._is_primed = self.state.generation, False
        self.state.forget_gone()
        self.rng.forget_others()
        self.log.clear()
        self.forget_due()

    def _begins_anew(self) -> bool:
        """A loop without a loader shows itself behind its first forward: whether all can be copied
        still. Else a snapshot that weights were loaded after is let go; the next one comes soon."""
        early, self._early = self._early, None
        if early is None or not self.state.buffers.have_moved():
            return early is not None
        if early == self.state.weight_versions():
            self.state.retake_small()
        else:
            self.state.snapshot.drop()
            self.want_deep_check()
        return False

    def open(self) -> RngState:
        """A window opens: the snapshot that the last deep check allowed is taken now, with all that
        the loop did after its step (schedule, averages) in it. Returns the random state."""
        self.has_world = has_world()
        if self.has_world:
            self.ranks.mark()
        if self._early is not None:  # rates, schedules, weights may have been set since then
            self._early, self._is_primed = None, False
        if self._generation != self.state.generation:
            self._forget_gone()
        if not self._is_primed:
            self.prime()
        if self._due is not None or provenance.has_averages:
            self._take_due_snapshot()
        if self.state.buffers.is_needed:
            self.state.buffers.copy(is_kept=self.deferral.is_waiting)
        return self.rng.capture()

    @unseen
    def _take_due_snapshot(self) -> None:
        if provenance.has_averages and self.state.adopt_averages(provenance.averages):
            self._due = self._due or (self.num_applied, [])
        if self._due is not None and not self.ranks.is_together:
            start = time.perf_counter()
            (tag, versions), self._due = self._due, None
            is_finite = self.state.is_still_finite(versions)
            if is_finite and self._has_room and (self.log.is_full() or not self.log.runs_away()):
                self.state.take_snapshot(tag)
                self.log.begin_anew()
            self._cost += time.perf_counter() - start

    def prime_again(self, is_opening: bool = False) -> None:
        """A model turned up: before the first step, all of it counts as the start.

        `is_opening`: a window opens right now, which primes by itself.
        """
        self.state.num_changes += 1
        if self.num_applied == 0:
            self._is_primed, self._early = False, None
            if not is_opening:
                self.prime()
                self._early = self.state.weight_versions()
        else:
            # Going back must put the newcomer back as well, so history starts anew here.
            self.state.buffers.copy()
            if self.ranks.is_together:
                self.want_deep_check()
            elif self._generation == self.state.generation:  # else all is copied anew in `open`
                self.deep_check(0)

    @property
    def must_wait(self) -> bool:
        """Whether a deep check or a snapshot waits for the verdict of a step that has been made."""
        return (self._is_deep_wanted or self._due is not None) and self.deferral.is_waiting

    def forget_due(self) -> None:
        """The training went back: what was checked is no longer there."""
        self._due = None
        self.state.num_changes += 1
        self._unseen.clear()
        self.log.let_go()

    def forget_known(self) -> None:
        """The training is another one from here on: what fails now is looked into anew."""
        self.known = KnownIncidents()

    @unseen
    def check(
        self, window: Window, optimizer: Optimizer, is_compared: bool = True
    ) -> Failure | None:
        """Whether this step may be applied: all finite, and (unless it is one of many evaluations) no
        spike that the policy acts on."""
        if len(self.state.optimizers.refs) > 1:
            window.optimizer_id = id(optimizer)
        if self.has_world:
            if self.shared.is_shared(optimizer):
                return self.shared.check(window, optimizer) or self.see(window)
            if self.ranks.is_joining():
                return self.shared.check_alike(window, optimizer)
        grads: list[Tensor] = []
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if type(rate) is not float or not -_INF < rate < _INF:
                bad = bad_rate(group)
                if bad is not None:
                    return Failure("learning_rate", window.step, name="lr", value=bad)
            grads += [g for p in group["params"] if (g := p.grad) is not None]
        losses = window.losses
        figures = (losses[0][1],) if len(losses) == 1 else [t for _, t in losses]
        seen = self.checker.look(grads, figures, window.norm)
        if seen is None:
            return self.explain(window, [optimizer])
        window.is_seen = True
        if window.losses:
            window.loss = seen.loss
            window.losses = []  # with the graph that hangs on it
        return self.lookout.see(window, window.loss, seen.norm) if is_compared else None

    def see(self, window: Window) -> Failure | None:
        """Loss and norm against the usual. The host has just waited for them: reading is free."""
        window.is_seen = True
        loss = window.losses[-1][1] if window.losses else None
        return self.lookout.see(window, *(number_of(t) for t in (loss, window.norm)))

    @unseen
    def explain(self, window: Window, optimizers: list[Optimizer]) -> Failure | None:
        """Which symptom it is; None for a norm that overflowed over finite gradients."""
        bad = [p for p, grad in self.state.grads(optimizers) if not is_finite(grad)]
        # An earlier loss may have been another optimizer's, whose step the loop leaves out by itself.
        is_other = optimizers and not bad and not all(is_finite(g) for _, g in self.state.grads())
        for step, loss in window.losses[-1:] if is_other else window.losses:
            if not is_finite(loss):
                return Failure("loss", step, value=number_of(loss))
        return Failure("gradient", window.step, self.state.name_of(bad[0])) if bad else None

    def close_healthy(self, window: Window, is_followed: bool = False) -> Failure | None:
        """After an applied step: keep it for going back; look deeper when the budget allows.

        `is_followed`: others were made since then; what a deep check would find may be theirs, and it waits.
        """
        if window.num_applied:
            self.recovery.note_applied()
            if not window.is_seen:
                self._unseen.append(window)  # read where a deep check waits for the device anyway
            goes_on = self.keep(window)
            if (
                goes_on
                and not self._is_deep_wanted
                and not self._num_wary
                and not (self.has_world and self.ranks.has_others)
            ):
                return None
        return self.look_deeper(window, is_followed)

    def keep(self, window: Window) -> bool:
        """A step that was applied goes into journal, history and log. Whether nobody has to ask for the time:
        every few steps is enough, since the interval of deep checks is in steps' worth of time."""
        self.num_applied += 1
        row = row_of(window, self.state)
        self.history.append(row)
        if self.journal is not None:
            self.journal.step(row)
        return self._has_room and self.log.add(window)

    def look_deeper(self, window: Window, is_followed: bool = False) -> Failure | None:
        """A deep check, if it is time for one."""
        if not self._is_deep_due():
            return None
        if is_followed and not self.ranks.is_together:
            self.want_deep_check()
            return None
        return self.deep_check(window.step)

    @property
    def is_steady(self) -> bool:
        """Whether the next steps, while `state.num_changes` stays what it is, are all that there is to note."""
        return (
            self.replay is None
            and self._is_primed
            and self._early is None
            and self._due is None
            and self._generation == self.state.generation
            and not self._is_deep_wanted
            and not self._num_wary
            and not self.has_world
            and not self.recovery.counts_steps
            and not self.recovery.left_out.drops
        )

    def _is_deep_due(self) -> bool:
        if self.ranks.is_together:
            return self.shared.take_agreed_deep_check()
        if self._is_deep_wanted:
            return True
        if self._num_wary:
            self._num_wary -= 1
            return True
        if self._has_room and self.log.is_full():
            return True
        elapsed = time.perf_counter() - self._deep_started
        is_new = bool(self.log) or not self._has_room
        return is_new and self._cost <= self.settings.budget * elapsed

    @unseen
    def deep_check(self, step: int) -> Failure | None:
        """Parameters, buffers and optimizer state; when all are finite, a new snapshot.

        With several ranks all of them have to call it, since a snapshot is for all or for none.
        """
        start = time.perf_counter()
        renew()
        self._is_deep_wanted = False
        bad = self.state.bad_state()
        if self.ranks.any(bool(bad)):
            own = Failure(bad[0][0], step, name=bad[0][1]) if bad else None
            return self.ranks.agree_on_bad(own, step, "parameter")
        if self.journal is not None:
            self.journal.deep(step)
        unseen, self._unseen = self._unseen, []
        spike = self.lookout.look_closer(step, unseen)
        if spike is not None:
            return spike
        if self.ranks.is_together:
            self._cost = time.perf_counter() - start
            if self._has_room:  # here all ranks meet; a window's opening is each one's own
                self._cost += self.state.take_snapshot(step + 1)
                self.log.begin_anew()
        else:
            self._due = (step + 1, self.state.versions())
            self.state.num_changes += 1
            self._cost = time.perf_counter() - start
        self._deep_started = time.perf_counter()
        return None

    def handle(self, window: Window, failure: Failure) -> tuple[Incident | None, Verdict]:
        """Look into a bad step, and do what the policy says; raises where the run must not go on."""
        self.state.num_changes += 1
        with self.ranks.each_for_itself():
            verdict = self._investigate(self, window, failure)
            return (self.conclude(verdict) if verdict.incident else None), verdict

    def conclude(self, verdict: Verdict) -> Incident:
        """What the policy says about it is done; raises where the run must not go on."""
        if self.ranks.has_left:
            # Moving this rank's state alone would tear the ranks apart.
            assert verdict.incident is not None
            return self.publish(verdict.incident)
        return self.recovery.conclude(verdict)

    def publish(self, incident: Incident, is_shared: bool = True) -> Incident:
        """Save it, print it, keep it; `is_shared`: False for what one rank met by itself (its saves)."""
        incident = self._save(incident) if is_shared else self.on_incident(incident)
        self.incidents.append(incident)
        if incident.event.phase == "optimizer" or incident.event.symptom == "buffer":
            self._num_wary = _WARY
        if self.journal is not None:
            self.journal.incident(incident)
        return incident

    def _save(self, incident: Incident) -> Incident:
        """One rank prints it and writes it down; all hold the same."""
        if not self.ranks.is_on:
            return self.on_incident(incident) if self.ranks.tells(incident.event.rank) else incident
        saved = self.on_incident(incident).to_json() if self.ranks.is_first else None
        try:
            return Incident.from_json(self.ranks.broadcast_from(self.ranks.first, saved))
        except Exception:  # it is decided, and told: each rank goes on with what it knows
            return incident if saved is None else Incident.from_json(saved)

    def records(self) -> tuple[StepRecord, ...]:
        """The last steps, for an incident."""
        return records_of(self.history)

    def let_go(self) -> None:
        """Nothing more will be run or looked at."""
        self.ranks.forget()
        self.log.clear()
        self.forget_due()
        self.history.clear()
        self.state.let_go()
