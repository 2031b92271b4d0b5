"""What is done about an incident: the policy's answer carried out, and the ledger of it."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor

from ..detect import SpikeWatch
from ..errors import BudgetExceededError, NonFiniteError
from ..records import Action, Event, Incident
from ..recover.ledger import Ledger, LedgerEntry
from ..recover.policy import Decision, Outlook, Policy, Tally
from ..recover.ramp import PrecisionRamp, RampMove
from ..report.terminal import say_warning
from ..report.text import headline, short_path
from .headroom import Headroom
from .healing import Healing
from .host import Host
from .last_state import save_last_healthy
from .limits import Limit, everywhere
from .ranks import RankFailure
from .rows import map_tensors, num_rows, take_rows
from .samples import bad_rows, zeroed
from .state import TrainState
from .undo import modes
from .window import BatchRef, Failure, Item, Verdict, Window

__all__ = ["DEEP", "SPIKE_NAMES", "Recovery", "is_number"]

DEEP = ("parameter", "buffer", "optimizer_state", "average")
"""Symptoms that a deep check finds: the state itself is bad, some steps after it became so."""
_LOUD = 3.0
"""A spike is printed when it is an alarm and this many times the usual; small batches have heavy tails."""
_PATIENCE = 12
"""Bad steps in a row after which a policy that thinks stops, where nothing is known of their state."""
SPIKE_NAMES = {"loss": "loss", "grad_norm": "gradient norm"}


class Recovery:
    """The acting half of the engine: it alone moves the training back."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.ledger = Ledger()
        self.tally = Tally()
        self.drops: dict[int, int] = {}
        """How many batches of each loader (by identity) are still to be left out; 0 is no loader."""
        self.bad_parts: Counter[str] = Counter()
        """How often each part of a loss was left out by `finite_mean` or `finite_sum`."""
        self.num_replays = 0
        """Replays under way: what they compute counts for nothing."""
        self.warnings: deque[Event] = deque(maxlen=1000)
        self._num_warnings: Counter[tuple[str, str | None]] = Counter()
        self.limits: list[Limit] = []
        self.headroom = Headroom()
        self.loss_watches: defaultdict[int, SpikeWatch] = defaultdict(lambda: SpikeWatch(ratio=1.5))
        """By the optimizer whose step it is."""
        self._norm_watches: defaultdict[int, SpikeWatch] = defaultdict(
            lambda: SpikeWatch(ratio=3.0)
        )
        self._is_blind = host.policy.on_spike == "ignore"
        self._ramp: PrecisionRamp | None = None
        self._sanitized: set[tuple[int, int]] = set()
        self.incidents_so_far: deque[Incident] = deque(maxlen=8)
        self.healing = Healing()
        self.folder: Path | None = None
        """The run folder; None where there is none."""
        self.last_healthy: Path | None = None

    @property
    def policy(self) -> Policy:
        return self._host.policy

    @property
    def state(self) -> TrainState:
        return self._host.state

    def conclude(self, verdict: Verdict) -> Incident:
        """Count it, answer it by the policy, tell of it; raises where the run must not go on."""
        assert verdict.incident is not None
        incident, window = verdict.incident, verdict.window
        self.tally.num_consecutive += 1
        self.tally.num_total += 1
        decision = self._decide(incident, window, verdict.outlook)
        is_own = window is not None and bool(window.own_update)
        if is_own and decision.kind not in ("raise", "stop"):
            decision = Decision("skip")  # the script applies it whatever we decide
        if decision.kind == "sanitize":
            assert window is not None
            cut = self._sanitize(window, incident)
            if cut is None:
                decision = self.policy.decide(self.tally, leave_out=("sanitize",))
            else:
                verdict.redo.insert(0, cut)
                action = self._sanitized_action(incident, window)
        if decision.kind == "rollback":
            action = self._roll_back(verdict, decision)
        elif decision.kind == "heal":
            action = self._heal(verdict, decision)
        elif decision.kind == "stop" and verdict.outlook is not None:
            action = self._stop_healthy(verdict, verdict.outlook)
        elif decision.kind != "sanitize":
            action = self._plain_action(incident, decision)
            if window is not None and (not is_own or window.is_put_back):
                self._note(window, "skipped", incident)
        incident = self._host.publish(replace(incident, action=action))
        self.incidents_so_far.append(incident)
        if self._ramp is not None:
            self._ramp.refresh()  # the scaler was put back to before the step
            self._ramp.note_incident(headline(replace(incident, action=Action(kind="none"))))
        if decision.kind == "raise":
            raise NonFiniteError(headline(incident), incident)
        if decision.kind == "stop" and verdict.outlook is not None:
            raise BudgetExceededError(self._farewell(incident, verdict.outlook), incident)
        if decision.kind == "stop":
            raise BudgetExceededError(
                f"{decision.reason}; the training cannot go on by {_doing(self.policy)}\n"
                f"  where: {headline(incident)}\n"
                f"  try: {self._way_out()}",
                incident,
            )
        return incident

    def give_up(self, reason: str) -> None:
        """Nothing that is done from here on can help: a policy that thinks ends the run."""
        if self.policy.is_thoughtful and self.incidents_so_far:
            last = self.incidents_so_far[-1]
            raise BudgetExceededError(
                f"{reason}\n  where: {headline(last)}\n  try: {self._way_out()}", last
            )

    def _way_out(self) -> str:
        """What is left when no batch can be applied any more."""
        if self.policy.name == "skip":
            return (
                "fix the cause, or let it go back and slow down: the policy rollback:6:lr=0.2 returns "
                "to the last snapshot with a fifth of the learning rate"
            )
        return "fix the cause, or roll back to the last good checkpoint"

    def _farewell(self, incident: Incident, outlook: Outlook) -> str:
        lines = [f"stopped: {outlook.reason}, so leaving batches out cannot help"]
        lines.append(f"  where: {headline(incident)}")
        if outlook.change:
            again = (
                "; --policy heal goes on with it by itself" if self.policy.name == "auto" else ""
            )
            lines.append(f"  try: {outlook.change} ({outlook.proof}){again}")
        else:
            lines.append("  try: fix the cause, then go on from the last healthy state")
        if self.last_healthy is not None:
            lines.append(f"  last healthy state: {short_path(str(self.last_healthy))}")
        return "\n".join(lines)

    def _heal(self, verdict: Verdict, decision: Decision) -> Action:
        """Back to the last healthy state, and on with what was seen to pass."""
        outlook = verdict.outlook
        assert outlook is not None and verdict.incident is not None
        action = self._roll_back(verdict, decision)
        self.healing.apply(outlook)
        self._host.forget_known()
        self.tally.num_consecutive = 0
        text = f"healed: from here on {outlook.change} ({outlook.proof}), because {outlook.reason}"
        self._note_change(verdict.incident, text)
        return replace(action, detail=f"{action.detail}; {text}")

    def _stop_healthy(self, verdict: Verdict, outlook: Outlook) -> Action:
        """The run ends, with its last healthy state in place and on disk."""
        state, window = self.state, verdict.window
        detail = f"leaving batches out cannot help: {outlook.reason}"
        is_own = window is not None and bool(window.own_update)
        if state.snapshot.is_taken and not is_own:
            tag = state.snapshot.tag
            state.clear_grads()
            state.snapshot.restore()
            detail += f"; parameters, optimizer state and buffers are back to before step {tag}"
            if self.folder is not None:
                self.last_healthy = save_last_healthy(state, self.folder, tag)
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
            self._host.journal.journal.event("change", step=event.step, about=kind, text=text)

    def _decide(
        self, incident: Incident, window: Window | None, outlook: Outlook | None
    ) -> Decision:
        cannot = []
        if window is None or self._key(window) in self._sanitized:
            cannot.append("sanitize")
        if not self.state.snapshot.is_taken:
            cannot.append("rollback")
        if incident.event.kind == "spike":
            wanted = self.policy.on_spike
            stop = self.policy.stop_reason(self.tally.num_consecutive, self.tally.num_total)
            if stop and wanted != "raise":
                return Decision("stop", stop)
            return Decision("skip" if wanted in cannot else wanted, "spike")
        is_new = outlook is None and incident.event.phase != "data"
        if self.policy.is_thoughtful and is_new and self.tally.num_consecutive > _PATIENCE:
            count = self.tally.num_consecutive
            return Decision("stop", f"{count} steps in a row are not finite, whatever the batch")
        decision = self.policy.decide(self.tally, tuple(cannot), outlook)
        if decision.kind == "heal" and window is not None and window.error is not None:
            return Decision(
                "stop", decision.reason
            )  # the script has ended: nobody is left to go on
        return decision

    def _plain_action(self, incident: Incident, decision: Decision) -> Action:
        if decision.kind == "raise":
            detail = "policy 'raise': the step was not applied"
            if incident.action.kind in ("none", "put_back"):
                detail = "policy 'raise': raised before the script could apply its update"
            return Action(kind="raised", detail=detail)
        if decision.kind == "stop":
            return Action(kind="stopped", detail=decision.reason)
        return incident.action

    def note_applied(self) -> None:
        self.tally.num_consecutive = 0
        if self._ramp is not None:
            self._ramp.note_applied()

    def note_scaler_skip(self) -> None:
        if self._ramp is not None:
            self._ramp.note_skip()

    def note_epoch(self) -> None:
        if self._ramp is not None:
            self._ramp.note_epoch()

    def follow(self, ramp: PrecisionRamp) -> None:
        """Let this ramp know how each step went; its moves are told and journaled."""
        self._ramp = ramp
        before = ramp.on_move

        def moved(move: RampMove) -> None:
            if before is not None:
                before(move)
            self.warn(
                Event(
                    step=move.step, phase="forward", kind="precision", symptom="precision",
                    message=f"{move.before} -> {move.after}: {move.reason}",
                )
            )  # fmt: skip

        ramp.on_move = moved

    def on_bad_parts(self, names: tuple[str, ...], total: int) -> None:
        """Parts of a loss were left out; each is told of once, and counted from then on."""
        if self.num_replays:
            return
        new = [n for n in names if n not in self.bad_parts]
        self.bad_parts.update(names)
        if new:
            self.warn(
                Event(
                    step=self._host.num_applied, phase="loss", kind="bad_part", name=new[0],
                    message=f"{', '.join(new)}: not finite, left out of the loss "
                    f"({len(names)} of {total} parts); counted from now on",
                )
            )  # fmt: skip

    def _roll_back(self, verdict: Verdict, decision: Decision) -> Action:
        """Everything as it was at the snapshot; the batches since then are left out."""
        host, state = self._host, self.state
        bad = [verdict.window] if verdict.window is not None else []
        since = [*host.log, *(w for w in bad if w not in host.log), *verdict.redo]
        tag = state.snapshot.tag
        state.clear_grads()
        put_modes = modes(state.roots.values())()
        state.snapshot.restore()
        put_modes()  # the loop goes on; what it has frozen since then stays so
        first = since[0] if since else None
        if first is not None and first.rng is not None and not verdict.keeps_random_state:
            first.rng.restore()
        if decision.lr_factor != 1.0:
            # The snapshot learns the new rate too: a second rollback lowers it further.
            state.scale_lrs(decision.lr_factor)
            state.snapshot.retake_small(state.snapshot_captures())
        host.log.clear()
        host.forget_due()
        self.tally.num_rollbacks += 1
        for watch in (*self.loss_watches.values(), *self._norm_watches.values()):
            watch.forget_after(tag)
        self.headroom.forget_after(tag)
        assert verdict.incident is not None
        for window in since:
            is_bad = window is verdict.window
            self._note(window, "skipped" if is_bad else "rolled_back", verdict.incident)
        verdict.redo.clear()
        self._drop_next(verdict.window, decision.skip_next)
        return Action(
            kind="rolled_back",
            restored_step=tag,
            detail=_rollback_detail(tag, len(since), decision, state.lrs()),
        )

    def _drop_next(self, window: Window | None, count: int) -> None:
        if not count:
            return
        owners = [o() for b in window.batches for o, _ in b.items] if window is not None else []
        for key in {id(o) if o is not None else 0 for o in owners} or {0}:
            self.drops[key] = self.drops.get(key, 0) + count

    def drops_batch(
        self, step: int, indices: object, loader: object | None, is_first: bool = True
    ) -> bool:
        """Whether this batch is one of those that a rollback leaves out as well."""
        key = id(loader) if loader is not None else 0
        if not self.drops.get(key):
            return False
        self.drops[key] -= 1
        if is_first:
            self.ledger.add(
                LedgerEntry(
                    step=step, epoch=0, kind="dropped", indices=_whole_numbers(indices),
                    reason="left out after a rollback (skip_next)",
                )
            )  # fmt: skip
        return True

    def _key(self, window: Window) -> tuple[int, int]:
        return window.epoch, window.step

    def _sanitize(self, window: Window, incident: Incident) -> Window | None:
        """The same window with its non-finite samples dropped or their bad values replaced."""
        refs: list[BatchRef] = []
        bad: list[tuple[BatchRef, list[int]]] = []
        found, can = False, True
        for ref in window.batches:
            total = num_rows(ref.value)
            rows = bad_rows(ref.value, total)
            if not rows and len(window.batches) == 1:
                rows = [r for r in incident.diagnosis.samples if total and r < total]
            if not rows:
                refs.append(ref.again())
                continue
            items = self._cut(ref, rows, total)
            if items is None:
                can = False
                break
            found = True
            bad.append((ref, rows))
            refs.append(ref.again(items))
        ranks = self._host.ranks  # all ranks run the step again, those with clean samples too
        if not ranks.all(can) or not ranks.any(found):
            return None
        for ref, rows in bad:
            self._note_rows(ref, rows, incident)
        self._sanitized.add(self._key(window))
        return Window(batches=refs, rng=window.rng, lrs=window.lrs)

    def _cut(self, ref: BatchRef, rows: list[int], total: int | None) -> list[Item] | None:
        if self.policy.sanitizer == "replace":
            return [(o, map_tensors(item, zeroed)) for o, item in ref.items]
        if total is None or len(rows) >= total or -1 in rows:
            return None
        keep = [r for r in range(total) if r not in set(rows)]
        return [(o, take_rows(item, keep, total)) for o, item in ref.items]

    def _note_rows(self, ref: BatchRef, rows: list[int], incident: Incident) -> None:
        known = _indices(ref)
        places = tuple(known[r] for r in rows if 0 <= r < len(known))
        what = "dropped" if self.policy.sanitizer == "drop" else "replaced by zeros"
        self.ledger.add(
            LedgerEntry(
                step=ref.step, epoch=ref.epoch, kind="sanitized", indices=places,
                rows=tuple(r for r in rows if r >= 0), incident=incident.id,
                reason=f"non-finite samples were {what}",
            )
        )  # fmt: skip

    def _sanitized_action(self, incident: Incident, window: Window) -> Action:
        entries = [e for e in self.ledger if e.incident == incident.id]
        count = sum(len(e.rows) for e in entries)
        what = "dropped" if self.policy.sanitizer == "drop" else "set to zero"
        return Action(
            kind="sanitized",
            detail=f"{count} sample{'s' * (count != 1)} with non-finite values {what}; "
            "the step was made with the rest",
        )

    def _note(self, window: Window | None, kind: str, incident: Incident) -> None:
        if window is None:
            return
        self.ledger.add(
            *(
                LedgerEntry(
                    step=ref.step, epoch=ref.epoch, kind=kind, indices=_indices(ref),
                    reason=headline(replace(incident, action=Action(kind="none"))),
                    incident=incident.id,
                )
                for ref in window.batches
            )
        )  # fmt: skip

    def see(self, window: Window, loss: float | None, norm: float | None) -> Failure | None:
        """Compare this step's finite figures with the usual; a Failure where the policy acts."""
        if self._is_blind:
            return None
        found: Failure | None = None
        watch = self.loss_watches[window.optimizer_id]
        if loss is not None and not watch.is_quiet(window.step, loss):
            found = self._judge(window, "loss", watch, loss)
        watch = self._norm_watches[window.optimizer_id]
        if norm is not None and not watch.is_quiet(window.step, norm):
            found = self._judge(window, "grad_norm", watch, norm) or found
        return found

    def _judge(
        self, window: Window, name: str, watch: SpikeWatch, value: float
    ) -> Failure | None:  # fmt: skip
        ranks = self._host.ranks
        spike = watch.note(window.step, value)
        self.headroom.look_at_figure(self, window, name, watch)
        if watch.tell(spike):
            assert spike is not None
            text = spike.describe(SPIKE_NAMES[name])
            is_loud = spike.is_alarm and value > _LOUD * abs(spike.usual)
            self._warn_of_spike(window, name, text, value, is_loud)
        # Each rank has a loss of its own; the norm after the all-reduce is the same for all.
        acts = self.policy.on_spike != "warn" and (name != "loss" or not ranks.is_on)
        if spike is None or not spike.is_alarm or not acts:
            return None
        if ranks.is_on:
            return RankFailure("spike", window.step, name, value, rank=ranks.first)
        return Failure("spike", window.step, name=name, value=value)

    def look_closer(self, step: int, unseen: list[Window]) -> Failure | None:
        """With a deep check: the figures that nobody has read yet, and the watched parameters."""
        known = {} if self._is_blind else _read_together(unseen)
        spikes = [f for w in unseen if (f := self.see(w, *known[id(w)])) is not None]
        for limit in (*self.limits, *everywhere):
            limit.check(self, step)
        self.headroom.look_at_weights(self, step)
        # These steps are applied already: leaving them out now means going back.
        return spikes[0] if spikes and self.policy.on_spike in ("rollback", "raise") else None

    def warn(self, event: Event, is_printed: bool = True) -> None:
        """Something to look at while nothing is wrong yet: a spike, a limit, a resumed rate."""
        self.warnings.append(event)
        host = self._host
        self._num_warnings[event.kind, event.name] += 1
        if is_printed and (host.ranks.is_first or not host.ranks.has_others):
            say_warning(event, self._num_warnings[event.kind, event.name])
        if host.journal is not None:
            host.journal.journal.event(
                "warning", step=event.step, about=event.kind, name=event.name, value=event.value,
                text=event.message,
            )  # fmt: skip

    def _warn_of_spike(
        self, window: Window, name: str, text: str, value: float, is_loud: bool
    ) -> None:
        """In the journal and in `guard.warnings`; on the terminal only what is far out."""
        self.warn(
            Event(
                step=window.step, epoch=window.epoch, kind="spike", value=value, name=name,
                phase="loss" if name == "loss" else "backward",
                symptom="loss" if name == "loss" else "gradient",
                lr=self.state.lrs(), message=text,
            ),
            is_printed=is_loud,
        )  # fmt: skip


def _indices(ref: BatchRef) -> tuple[int, ...]:
    return _whole_numbers(ref.indices)


def _whole_numbers(found: object) -> tuple[int, ...]:
    return tuple(i for i in found if isinstance(i, int)) if isinstance(found, list) else ()


def _doing(policy: Policy) -> str:
    kinds = {r.kind for r in policy.steps()}
    return "rolling back" if "rollback" in kinds else "skipping"


def _rollback_detail(tag: int, count: int, decision: Decision, lrs: tuple[float, ...]) -> str:
    text = (
        f"back to the state before step {tag}; the {count} "
        f"batch{'es' * (count != 1)} since then are left out"
    )
    if decision.skip_next:
        text += f", and the next {decision.skip_next}"
    if decision.lr_factor != 1.0 and lrs:
        text += f"; the learning rate is now {lrs[0]:.4g} (times {decision.lr_factor:g})"
    return text


def _read_together(windows: list[Window]) -> dict[int, tuple[float | None, float | None]]:
    """Loss and norm of many steps in one transfer, by the windows' identity.

    Sharded norms and complex losses are not compared with anything, so they are not read.
    """
    pairs = [(w.losses[-1][1] if w.losses else None, w.norm) for w in windows]
    plain = [t for pair in pairs for t in pair if is_number(t)]
    values: list[float] = []
    if plain:
        device = plain[0].device
        values = torch.stack([t.detach().to(device, torch.float64) for t in plain]).tolist()
    known = dict(zip(map(id, plain), values))
    return {id(w): (known.get(id(a)), known.get(id(b))) for w, (a, b) in zip(windows, pairs)}


def is_number(value: object) -> TypeGuard[Tensor]:
    """A plain real scalar on a device."""
    return type(value) is Tensor and not value.dim() and not value.is_complex()
