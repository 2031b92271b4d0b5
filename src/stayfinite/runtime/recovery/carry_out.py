"""Carries out the policy's response to an incident, and records it in the ledger."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...errors import BudgetExceededError, NonFiniteError
from ...patches.firewall import Firewall
from ...records import Action, Event, Incident
from ...recover.ledger import Ledger, LedgerEntry
from ...recover.policy import Decision, Outlook, Policy, Tally
from ...recover.ramp import PrecisionRamp, RampMove
from ...report.text import headline, short_path
from ..host import Host
from ..incident_facts import LastSave, facts
from ..plan.run import PlanRun
from ..samples import Sanitizer
from ..saves.last_state import save_last_healthy
from ..state import TrainState
from ..undo import modes
from ..warn.limits import everywhere
from ..window import Verdict, Window
from .healing import Healing
from .left_out import LeftOut
from .part_redo import PartRedo
from .stopping import PATIENCE, FirstSteps, budget_message, give_up_message, outlook_message

__all__ = ["DEEP", "Recovery"]

DEEP = ("parameter", "buffer", "optimizer_state", "average")
"""Symptoms that a deep check finds: the state itself is bad, some steps after it became so."""
_NEARLY = 25
"""A diverged run that has at most this many batches left in its epoch may finish the epoch."""


class Recovery:
    """Carries out the policy. Only this class restores snapshots of a running training."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.left_out = LeftOut()
        self.tally = Tally()
        self.bad_parts: Counter[str] = Counter()
        """How often `finite_mean` or `finite_sum` dropped each part of a loss."""
        self.num_replays = 0
        """Replays in progress, in which bad parts are not counted."""
        self._ramp: PrecisionRamp | None = None
        self.plan: PlanRun | None = None
        self._sanitizer = Sanitizer(host)
        self._parts = PartRedo(host)
        self.incidents_so_far: deque[Incident] = deque(maxlen=8)
        self.position: Callable[[Window], tuple[int, int] | None] = lambda window: None
        """(batches drawn, total batches) of a window's epoch; None if unknown."""
        self.num_open: Callable[[], int] = lambda: 0
        """Applied steps that are not counted yet: a loop's window closes with its next batch."""
        self._lost: Outlook | None = None
        """Set if the state has diverged and the run waits for the end of the epoch."""
        self._lost_epoch: int | None = None
        self._start = FirstSteps()
        self.healing = Healing()
        self.folder: Path | None = None
        """The run folder, if there is one."""
        self.last_healthy: Path | None = None
        self.last_save = LastSave()
        self._firewall = Firewall("what else is known of a bad step")

    @property
    def policy(self) -> Policy:
        return self._host.policy

    @property
    def ledger(self) -> Ledger:
        return self.left_out.ledger

    @property
    def state(self) -> TrainState:
        return self._host.state

    def conclude(self, verdict: Verdict) -> Incident:
        """Count the incident, apply the policy, publish; raises if the run must end."""
        assert verdict.incident is not None
        window = verdict.window
        incident = verdict.incident = self._with_facts(verdict.incident, window)
        self.tally.num_consecutive += 1
        self.tally.num_total += 1
        is_first = not self._host.num_applied and self.policy.is_adaptive
        never = self._start.note(incident, self._host.ranks) if is_first else None
        verdict.outlook = verdict.outlook or self._lost or never
        decision = self._decide(incident, window, verdict.outlook)
        is_own = window is not None and window.is_scripts_own
        if is_own and decision.kind not in ("raise", "stop"):
            decision = Decision("skip")  # the script applies its own update, or none, in any case
        if decision.kind == "sanitize":
            assert window is not None
            cut = self._sanitizer.cut(window, incident, self.ledger, verdict.can_repeat)
            if cut is None:
                decision = self.policy.decide(self.tally, leave_out=("sanitize",))
            else:
                verdict.redo.insert(0, cut)
                action = self._sanitizer.action(incident, self.ledger)
        if decision.kind == "parts":
            assert window is not None
            decision, action = self._by_parts(verdict, window, decision)
        if decision.kind == "rollback":
            action = self._roll_back(verdict, decision)
        elif decision.kind == "heal":
            action = self._heal(verdict, decision)
        elif decision.kind == "stop" and verdict.outlook is not None:
            action = self._stop_healthy(verdict, verdict.outlook)
        elif decision.kind not in ("sanitize", "parts"):
            action = self._plain_action(incident, decision)
            is_out = not is_own or (window is not None and window.is_reverted)
            if is_out and action.kind != "rebuilt":
                self.left_out.note(window, "skipped", incident)
        incident = self._host.publish(replace(incident, action=action))
        self.incidents_so_far.append(incident)
        if self._ramp is not None:
            self._ramp.refresh()  # the scaler was restored to before the step
            self._ramp.note_incident(headline(replace(incident, action=Action(kind="none"))))
        if self.plan is not None:
            self.plan.note_incident()
        if decision.kind == "raise":
            raise NonFiniteError(headline(incident), incident)
        if decision.kind == "stop":
            if verdict.outlook is not None:
                text = outlook_message(incident, verdict.outlook, self.policy, self.last_healthy)
            else:
                text = budget_message(incident, decision.reason, self.policy)
            raise BudgetExceededError(text, incident)
        return incident

    def _with_facts(self, incident: Incident, window: Window | None) -> Incident:
        """Add facts that only the running training knows; not for repeated incidents."""
        if incident.same_as is not None:
            return incident
        limits = [*self._host.monitor.limits, *everywhere]
        cost = self.last_save.cost(self._host.num_applied)
        is_loop = window is not None and window.batches[0].loss_fn is None
        home = incident.location.module
        found = self._firewall.once(facts, home, self.state, limits, cost, is_loop) or []
        diagnosis = incident.diagnosis
        evidence = (*diagnosis.evidence, *found)
        return replace(incident, diagnosis=replace(diagnosis, evidence=evidence))

    def give_up(self, reason: str) -> None:
        """End the run, if the policy is adaptive: nothing can help any more."""
        if self.policy.is_adaptive and self.incidents_so_far:
            last = self.incidents_so_far[-1]
            raise BudgetExceededError(give_up_message(last, reason, self.policy), last)

    def _by_parts(
        self, verdict: Verdict, window: Window, decision: Decision
    ) -> tuple[Decision, Action]:
        """Repeat the step without the bad parts of its loss; if that is not possible, the next action of the policy."""
        if window.batches[0].loss_fn is not None:  # the guard repeats it
            verdict.redo.insert(0, self._parts.again(window))
            return decision, self._parts.action()
        if not self._parts.run(verdict, window):
            return self.policy.decide(self.tally, leave_out=("parts",)), Action(kind="none")
        self.bad_parts.update(self._parts.names())
        self.tally.num_consecutive = 0
        return decision, self._parts.action()

    def _heal(self, verdict: Verdict, decision: Decision) -> Action:
        """Restore the last healthy state, and continue with the setting that passed."""
        outlook = verdict.outlook
        assert outlook is not None and verdict.incident is not None
        action = self._roll_back(verdict, decision)
        self.healing.apply(outlook)
        self._host.known.forget()
        self.tally.num_consecutive = 0
        text = f"healed: from here on {outlook.change} ({outlook.proof}), because {outlook.reason}"
        self._note_change(verdict.incident, text)
        return replace(action, detail=f"{action.detail}; {text}")

    def _stop_healthy(self, verdict: Verdict, outlook: Outlook) -> Action:
        """Stop the run, with its last healthy state restored and saved."""
        state, window = self.state, verdict.window
        detail = f"leaving batches out cannot help: {outlook.reason}"
        is_own = window is not None and bool(window.manual_update)
        if state.snapshot.is_taken and not is_own and self._host.num_applied:
            tag = state.snapshot.tag
            state.clear_grads()
            state.snapshot.restore()
            detail += f"; parameters, optimizer state and buffers are back to before step {tag}"
            self.last_healthy = save_last_healthy(state, self.folder, tag, self._host.ranks)
            if self.last_healthy is not None:
                detail += f", and saved in {short_path(str(self.last_healthy))}"
        assert verdict.incident is not None
        self._note_change(verdict.incident, f"stopped: {detail}", kind="stopped")
        return Action(kind="stopped", detail=detail)

    def _note_change(self, incident: Incident, text: str, kind: str = "healed") -> None:
        event = incident.event
        self.ledger.add(
            LedgerEntry(
                step=event.step, epoch=event.epoch, kind=kind, reason=text, incident=incident.id
            )
        )
        if self._host.journal is not None:
            self._host.journal.file.event("change", step=event.step, about=kind, text=text)

    def _decide(
        self, incident: Incident, window: Window | None, outlook: Outlook | None
    ) -> Decision:
        cannot = []
        wants_parts = any(r.kind == "parts" for r in self.policy.steps())
        if wants_parts and not self._parts.can(window, incident.event.symptom):
            cannot.append("parts")
        if window is None or self._sanitizer.has_cut(window.epoch, window.step):
            cannot.append("sanitize")
        if not self.state.snapshot.is_taken:
            cannot.append("rollback")
        if self._host.ranks.is_apart:  # without agreement, only actions that all ranks take alike
            cannot += ["parts", "sanitize", "rollback"]
        if incident.event.kind == "spike":
            wanted = self.policy.on_spike
            stop = self.policy.stop_reason(self.tally.num_consecutive, self.tally.num_total)
            if stop and wanted != "raise":
                return Decision("stop", stop)
            return Decision("skip" if wanted in cannot else wanted, "spike")
        is_dark = outlook is None and not incident.location.is_reproduced
        is_new = is_dark and incident.event.phase != "data" and not self._host.ranks.is_apart
        is_long = self.policy.is_adaptive and self.tally.num_consecutive > PATIENCE
        # They may not have been able to investigate together.
        if is_long and self._host.ranks.any(is_new):
            count = self.tally.num_consecutive
            return Decision("stop", f"{count} steps in a row are not finite, whatever the batch")
        decision = self.policy.decide(self.tally, tuple(cannot), outlook)
        if decision.kind == "heal" and window is not None and window.error is not None:
            return Decision("stop", decision.reason)  # the script has raised, so it cannot continue
        is_over = decision.kind == "stop" and outlook is not None
        if is_over and self._host.ranks.any(self._is_nearly_through(window)):
            self._lost = outlook
            return Decision("skip")
        return decision

    def _is_nearly_through(self, window: Window | None) -> bool:
        """Whether the epoch is about to end, and perhaps the script with it.

        The run waits for that once, and skips the few steps until then.
        """
        found = self.position(window) if window is not None else None
        if window is None or found is None or window.error is not None:
            return False
        done, length = found
        if length - done > _NEARLY:
            return False
        self._lost_epoch = window.epoch if self._lost_epoch is None else self._lost_epoch
        return window.epoch == self._lost_epoch

    def _plain_action(self, incident: Incident, decision: Decision) -> Action:
        if decision.kind == "raise":
            detail = "policy 'raise': the step was not applied"
            if incident.action.kind == "rebuilt":
                detail = f"policy 'raise': {incident.action.detail}"
            elif incident.action.kind in ("none", "put_back"):
                detail = "policy 'raise': raised before the script could apply its update"
            return Action(kind="raised", detail=detail)
        if decision.kind == "stop":
            return Action(kind="stopped", detail=decision.reason)
        return incident.action

    @property
    def counts_steps(self) -> bool:
        """Whether a step that was applied changes anything here."""
        return bool(self.tally.num_consecutive or self._lost or self._ramp or self.plan)

    def note_applied(self) -> None:
        self.tally.num_consecutive = 0
        self._lost = self._lost_epoch = None
        if self._ramp is not None:
            self._ramp.note_applied()
        if self.plan is not None:
            self.plan.note_applied()

    def note_scaler_skip(self) -> None:
        """A normal skip of the scaler ends a series of bad steps: the batch itself is fine."""
        self.tally.num_consecutive = 0
        if self._ramp is not None:
            self._ramp.note_skip()

    def note_epoch(self) -> None:
        if self._ramp is not None:
            self._ramp.note_epoch()

    def follow(self, ramp: PrecisionRamp) -> None:
        """Notify this ramp of each step; report and journal its moves."""
        self._ramp = ramp
        before = ramp.on_move

        def moved(move: RampMove) -> None:
            if before is not None:
                before(move)
            self._host.monitor.warn(
                Event(
                    step=move.step, phase="forward", kind="precision", symptom="precision",
                    message=f"{move.before} -> {move.after}: {move.reason}",
                )
            )  # fmt: skip

        ramp.on_move = moved

    def on_bad_parts(self, names: tuple[str, ...], total: int) -> None:
        """Count the dropped parts of a loss; each is reported once."""
        if self.num_replays:
            return
        new = [n for n in names if n not in self.bad_parts]
        self.bad_parts.update(names)
        if new:
            self._host.monitor.warn(
                Event(
                    step=self._host.num_applied, phase="loss", kind="bad_part", name=new[0],
                    message=f"{', '.join(new)}: not finite, left out of the loss "
                    f"({len(names)} of {total} parts); counted from now on",
                )
            )  # fmt: skip

    def _roll_back(self, verdict: Verdict, decision: Decision) -> Action:
        """Restore the snapshot; the batches since then are skipped."""
        host, state = self._host, self.state
        bad = [verdict.window] if verdict.window is not None else []
        since = [*host.log, *(w for w in bad if w not in host.log), *verdict.redo]
        tag = state.snapshot.tag
        state.clear_grads()
        put_modes = modes(state.roots.values())()
        state.snapshot.restore()
        put_modes()  # modules that the loop has frozen since then stay frozen
        first = since[0] if since else None
        if first is not None and first.rng is not None and not verdict.keeps_random_state:
            first.rng.restore()
        if decision.lr_factor != 1.0:
            # Write the new rate to the snapshot as well, so that a second rollback lowers it further.
            state.scale_lrs(decision.lr_factor)
            state.snapshot.retake_small(state.snapshot_captures())
        host.log.clear()
        host.deep_checks.forget_due()
        self.tally.num_rollbacks += 1
        host.monitor.forget_after(tag)
        assert verdict.incident is not None
        for window in since:
            is_bad = window is verdict.window
            self.left_out.note(window, "skipped" if is_bad else "rolled_back", verdict.incident)
        verdict.redo.clear()
        self.left_out.drop_next(verdict.window, decision.skip_next)
        return Action(
            kind="rolled_back",
            restored_step=tag,
            detail=_rollback_detail(tag, len(since), decision, state.lrs()),
        )


def _rollback_detail(tag: int, count: int, decision: Decision, lrs: tuple[float, ...]) -> str:
    text = (
        f"back to the state before step {tag}; the {count} "
        f"step{'s' * (count != 1)} since then {'are' if count != 1 else 'is'} left out"
    )
    if decision.skip_next:
        text += f", and the next {decision.skip_next}"
    if decision.lr_factor != 1.0 and lrs:
        text += f"; the learning rate is now {lrs[0]:.4g} (times {decision.lr_factor:g})"
    return text
