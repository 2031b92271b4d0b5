"""The engine of all drivers: checks each step, remembers what a replay needs, hands bad steps over.

While a training is healthy the engine only checks and remembers. A bad step goes to the investigation, which is given
to the engine as a function, and then to the policy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from torch import Tensor
from torch.optim import Optimizer

from ..config import Settings
from ..detect import ScaleWatch
from ..detect.check import StepCheck, bad_rate, number_of
from ..numerics.health import is_finite
from ..patches.provenance import provenance
from ..records import Incident, StepRecord
from ..recover.policy import Policy
from .carried import Carried
from .deep_checks import DeepChecks
from .deferral import Deferral
from .frames import StepPlace
from .history import Row, records_of, row_of
from .journal import RunJournal
from .known import KnownIncidents
from .outside_modes import outside_user_code
from .ranks.agreement import Ranks
from .ranks.groups import has_world
from .ranks.shared_check import SharedCheck
from .recovery.carry_out import Recovery
from .rng import RngMemory, RngState
from .state import TrainState
from .step.parts import StepParts
from .warn.monitor import Monitor
from .weak import weakly
from .window import Failure, RunningReplay, Verdict, Window
from .window_log import WindowLog

__all__ = ["Engine", "Investigate"]

Investigate = Callable[["Engine", Window, Failure], Verdict]

_INF = float("inf")


class Engine:
    """Everything that does not depend on who drives the loop."""

    def __init__(
        self, state: TrainState, settings: Settings, policy: Policy, investigate: Investigate
    ) -> None:
        self.state = state
        self.settings = settings
        self.policy = policy
        self._investigate = investigate

        self.checker = StepCheck(syncs=not settings.deferred)
        self.ranks = Ranks(settings.rank_seconds)
        self.shared = SharedCheck(self)
        self.deferral = Deferral(self, self.shared)
        self.scale_watch = ScaleWatch()
        self.monitor = Monitor(self)
        self.deep_checks = DeepChecks(self)
        state.on_over = weakly(self.forget_windows)
        self.has_world = False
        """Whether there is a process group, as of the open window."""

        self.rng = RngMemory()
        self.log = WindowLog(settings.max_batches)
        self.history: deque[Row] = deque(maxlen=settings.history)
        self.step_place = StepPlace()
        self.carried = Carried()
        self.num_applied = 0
        self.snapshot_folder: Path | None = None
        """The folder for a snapshot that does not fit into memory; None is the system's temporary one."""

        self.replay: RunningReplay | None = None
        """The replay in progress: it receives the backward and the optimizer steps."""
        self.recovery = Recovery(self)
        self.known = KnownIncidents()
        self.incidents: list[Incident] = []
        self.on_incident: Callable[[Incident], Incident] = lambda incident: incident
        self.journal: RunJournal | None = None
        """None without a run folder."""
        self.step_parts: StepParts | None = None
        """The model, optimizer and schedule of `guard.step`; None for other drivers."""
        self.script: str | None = None
        """The file that `stayfinite run` runs; None with a guard in the script."""

    def open(self) -> RngState:
        """Begin a window: bring the copies of the state up to date; return the random state."""
        self.has_world = has_world()
        if self.has_world:
            self.ranks.mark()
        state, checks = self.state, self.deep_checks
        if checks.has_work or checks.generation != state.generation or provenance.has_averages:
            checks.before_window()
        if state.buffers.is_needed:
            state.buffers.copy(is_kept=self.deferral.is_waiting)
        if self.carried.is_needed:
            self.carried.note()
        return self.rng.capture()

    def forget_windows(self) -> None:
        """Drop all references to batches and weights of a training that is over."""
        self.carried.forget()
        self.log.forget()
        self.deep_checks.forget_due()

    @outside_user_code
    def check(
        self, window: Window, optimizer: Optimizer, is_compared: bool = True
    ) -> Failure | None:
        """The reason not to apply this step: a value that is not finite, or a spike that the policy acts on.

        `is_compared`: False for one of many evaluations of a closure, whose loss is no baseline for spikes.
        """
        self.carried.look(self.step_place)
        if len(self.state.optimizers.refs) > 1:
            window.optimizer_id = id(optimizer)
        if self.has_world:
            if self.shared.is_shared(optimizer):
                return self.shared.check(window, optimizer) or self.compare(window)
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
        seen = self.checker.check(grads, figures, window.norm)
        if seen is None:
            return self.explain(window, [optimizer])
        window.is_seen = True
        if window.losses:
            window.loss = seen.loss
            window.losses = []  # with the graph that hangs on it
        return self.monitor.compare(window, window.loss, seen.norm) if is_compared else None

    def compare(self, window: Window) -> Failure | None:
        """Compare loss and norm with the usual, where the host has just waited for them and reading is free."""
        window.is_seen = True
        if window.losses:
            window.loss = number_of(window.losses[-1][1])
        return self.monitor.compare(window, window.loss, number_of(window.norm))

    @outside_user_code
    def explain(self, window: Window, optimizers: list[Optimizer]) -> Failure | None:
        """Which value is not finite; None for a norm that overflowed over finite gradients."""
        bad = [p for p, grad in self.state.grads(optimizers) if not is_finite(grad)]
        # An earlier loss may belong to another optimizer, whose step the loop leaves out by itself.
        is_other = optimizers and not bad and not all(is_finite(g) for _, g in self.state.grads())
        for step, loss in window.losses[-1:] if is_other else window.losses:
            if not is_finite(loss):
                return Failure("loss", step, value=number_of(loss))
        return Failure("gradient", window.step, self.state.name_of(bad[0])) if bad else None

    def close_healthy(self, window: Window, is_followed: bool = False) -> Failure | None:
        """Log an applied step for time travel, and run a deep check when the budget allows it.

        `is_followed`: later steps were applied already. What a check found might be theirs, so it waits.
        """
        checks = self.deep_checks
        if window.num_applied:
            self.recovery.note_applied()
            if not window.is_seen:
                checks.uncompared.append(window)
            goes_on = self.log_step(window)
            if (
                goes_on
                and not checks.is_requested
                and not checks.num_forced
                and not (self.has_world and self.ranks.has_others)
            ):
                return None
        return self.check_deeply_if_due(window, is_followed)

    def log_step(self, window: Window) -> bool:
        """Log an applied step; False if it is time to read the clock.

        It is read every few steps only: the time between two deep checks is many steps long.
        """
        self.num_applied += 1
        row = row_of(window, self.state)
        self.history.append(row)
        if self.journal is not None:
            self.journal.step(row)
        return self.deep_checks.can_snapshot and self.log.add(window)

    @property
    def is_quiet(self) -> bool:
        """Whether a healthy step is only logged, as long as `state.num_changes` stays the same."""
        recovery = self.recovery
        return (
            self.deep_checks.is_quiet
            and self.replay is None
            and not self.has_world
            and not recovery.counts_steps
            and not recovery.left_out.drops
        )

    def check_deeply_if_due(self, window: Window, is_followed: bool = False) -> Failure | None:
        """Run a deep check when the budget allows it."""
        checks = self.deep_checks
        self.monitor.plan_look()
        if not checks.is_due():
            return None
        if is_followed and not self.ranks.is_together:
            checks.request()
            return None
        return checks.run(window.step)

    def handle(self, window: Window, failure: Failure) -> tuple[Incident | None, Verdict]:
        """Investigate a bad step and apply the policy; raises where the run must end."""
        self.state.num_changes += 1
        self.ranks.summary.interrupt()
        self.shared.unmark()
        with self.ranks.each_for_itself():
            verdict = self._investigate(self, window, failure)
            return (self.conclude(verdict) if verdict.incident else None), verdict

    def conclude(self, verdict: Verdict) -> Incident:
        """Apply the policy; raises where the run must end."""
        if self.ranks.has_left:
            # Restoring the state of this rank alone would make the ranks differ.
            assert verdict.incident is not None
            return self.publish(verdict.incident)
        return self.recovery.conclude(verdict)

    def publish(self, incident: Incident, is_shared: bool = True) -> Incident:
        """Save, print and remember the incident; `is_shared`: False where only this rank knows of it (its saves)."""
        incident = self._save(incident) if is_shared else self.on_incident(incident)
        self.incidents.append(incident)
        if incident.event.phase == "optimizer" or incident.event.symptom == "buffer":
            self.deep_checks.force()
        if self.journal is not None:
            self.journal.file.incident(incident)
        return incident

    def _save(self, incident: Incident) -> Incident:
        """One rank prints and writes it; all ranks keep the same incident."""
        if not self.ranks.is_on:
            is_ours = self.ranks.reports(incident.event.rank)
            return self.on_incident(incident) if is_ours else incident
        saved = self.on_incident(incident).to_json() if self.ranks.is_first else None
        try:
            return Incident.from_json(self.ranks.broadcast_from(self.ranks.first, saved))
        except Exception:  # it is decided and reported; each rank continues with what it knows
            return incident if saved is None else Incident.from_json(saved)

    def records(self) -> tuple[StepRecord, ...]:
        """The last steps, for an incident."""
        return records_of(self.history)

    def release_all(self) -> None:
        """Drop every reference to the training; nothing is run or checked any more."""
        self.monitor.operators.close()
        self.ranks.forget()
        self.forget_windows()
        self.history.clear()
        self.state.release_all()
