"""The engine under all three forms: the sentinel's check, the budget, incidents and their action."""

from __future__ import annotations

import math
import platform
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..config import Settings
from ..detect import ScaleWatch
from ..numerics.health import FiniteFlag, is_finite
from ..observe.batches import batch_bytes
from ..observe.rng import RngMemory, RngState
from ..observe.witness import witness
from ..records import Incident, StepRecord
from ..recover.policy import Policy
from .deferred import DeferredFlag
from .journaling import RunJournal
from .keeping import choose_snapshot
from .ranks import (
    DUE,
    NOT_DUE,
    URGENT,
    RankFailure,
    Ranks,
    has_world,
    local,
    note_initial,
)
from .recovery import Recovery
from .state import TrainState
from .window import Failure, Window

if TYPE_CHECKING:
    from .investigation import Verdict

__all__ = ["Core"]

_MAX_LOG_BYTES = 1 << 29
_INF = math.inf
_item = torch._C.TensorBase.item  # without the wire round Tensor.item


class Core:
    """Everything that does not depend on who drives the loop."""

    def __init__(self, state: TrainState, settings: Settings, policy: Policy) -> None:
        self.state = state
        self.settings = settings
        self.policy = policy
        self.rng = RngMemory()
        self.ranks = Ranks()
        self.history: deque[tuple[Any, ...]] = deque(maxlen=settings.history)
        self.log: list[Window] = []
        """Windows applied since the snapshot, for going back."""
        self.incidents: list[Incident] = []
        self.on_incident: Callable[[Incident], Incident] = lambda incident: incident
        self.journal: RunJournal | None = None
        """Set where there is a run folder; without one nothing is journaled."""
        self.scale_watch = ScaleWatch()
        self.recovery = Recovery(self)
        self.snapshot_folder: Path | None = None
        """Where a snapshot goes that does not fit into memory; None is the system's own place."""
        self.num_applied = 0
        self._flags: dict[int, FiniteFlag] = {}
        self._is_primed = False
        self._has_world = False
        self._cost = 0.0
        self._deep_started = time.perf_counter()
        self._log_bytes = 0
        self._has_room = True
        self._due: tuple[int, list[tuple[Tensor, int]]] | None = None
        self._unseen: list[Window] = []
        self._deferred: DeferredFlag | None = None
        self._can_defer: dict[int, bool] = {}
        self._has_met = False
        self._is_deep_agreed = False
        self._is_deep_wanted = False

    # -- the sentinel ------------------------------------------------------------------------

    def check(self, window: Window, optimizer: Optimizer) -> Failure | None:
        """Whether this step may be applied: all finite, and no spike that the policy acts on.

        Loss and gradients in one fused pass and one read; learning rates by a look.
        """
        if self._has_world:
            if self.is_shared(optimizer):
                return self.check_together(window, optimizer) or self.see(window)
            if self.ranks.is_joining():
                return None
        grads: list[Tensor] = []
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if type(rate) is float and not -_INF < rate < _INF:
                return Failure("learning_rate", window.step, name="lr", value=rate)
            grads += [g for p in group["params"] if (g := p.grad) is not None]
        losses = window.losses
        if window.norm is not None or len(losses) != 1 or not grads:
            return self._check_several(window, optimizer, grads)
        flag = self._flags.get(id(optimizer)) or self._new_flag(optimizer, grads)
        if flag.here is None:
            return self._check_several(window, optimizer, grads)
        # Nearly every step of a training on the CPU comes by here, so nothing is called for nothing.
        flag.fold(grads)
        value = _item(losses[0][1])
        if flag.here.value != 0.0 or not -_INF < value < _INF:
            flag.reset()
            return self.explain(window, [optimizer])
        window.is_seen = True
        window.loss = value
        window.losses = []  # with the graph that hangs on it
        if self.recovery.loss_watch.is_quiet(window.batches[-1].step, value):
            return None
        return self.recovery.see(window, value, None)

    def _check_several(
        self, window: Window, optimizer: Optimizer, grads: list[Tensor]
    ) -> Failure | None:
        """The same with several losses, the loop's own norm, or on an accelerator: one read."""
        losses, norm = [t for _, t in window.losses], window.norm
        flag: FiniteFlag | None = None
        if norm is not None:
            scalars = [norm, *losses]
        elif not grads and not losses:
            return None
        else:
            flag, scalars = self._flags.get(id(optimizer)) or self._new_flag(optimizer, grads), losses
            flag.fold(grads)
        values = read_scalars(flag, scalars)
        if values is None:
            return self.explain(window, [optimizer])
        window.is_seen = True
        if losses:
            window.loss = values[-1]
            window.losses = []
        return self.recovery.see(window, window.loss, None if norm is None else values[0])

    def see(self, window: Window) -> Failure | None:
        """Loss and norm against the usual. The host has just waited for them: reading is free."""
        window.is_seen = True
        loss = window.losses[-1][1] if window.losses else None
        return self.recovery.see(window, *(_number(t) for t in (loss, window.norm)))

    # -- the sentinel of several ranks ---------------------------------------------------------

    def is_shared(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer's step is decided by several ranks together."""
        if not self.ranks.is_shared(optimizer) or self.ranks.is_joining():
            return False
        if not self._has_met:
            self._has_met = True
            if not self.ranks.all(self._has_room):  # going back is for all ranks or for none
                self._has_room = False
                self.state.snapshot.drop()
                self.log.clear()
        return True

    def check_together(
        self, window: Window, optimizer: Optimizer, is_scaled: bool = False
    ) -> Failure | None:
        """The same with one tiny all-reduce before the read; after a scaler, for the losses only."""
        checked = [local(t).clone() for _, t in window.losses]
        if window.norm is not None:
            checked.insert(0, window.norm.clone())
        elif not is_scaled:
            checked[:0] = [local(g) for g in self._grads(optimizer)]
        rate = _bad_rate(window, optimizer)
        flag = self._flags.get(id(optimizer)) or self._new_flag(optimizer, checked)
        flag.fold(checked)
        if rate is not None:
            flag.value.fill_(1.0)
        agreed = self.ranks.agree_on_flag(flag.value, self._wish())
        self._is_deep_agreed = agreed.is_due
        if not agreed.is_bad:
            return None
        flag.reset()
        return self.ranks.agree(rate or self.explain(window, [] if is_scaled else [optimizer]))

    def late_failure(self, window: Window) -> Failure | None:
        """What a deferred step that went wrong is called; None where another rank tells of it."""
        failure = Failure("loss", window.step, value=float(window.losses[-1][1]))
        if self.ranks.has_parted:
            return self.explain(window, []) or (failure if self.ranks.is_first else None)
        if not self.ranks.is_on:
            return failure
        return self.ranks.agree(self.explain(window, [])) or RankFailure(
            "gradient", window.step, rank=self.ranks.first
        )

    def _wish(self) -> int:
        """Whether this rank wants a deep check after this step: by its clock, its memory."""
        is_full = len(self.log) + 1 >= self.settings.max_batches
        if self._is_deep_wanted or is_full or self._log_bytes > _MAX_LOG_BYTES:
            return URGENT
        elapsed = time.perf_counter() - self._deep_started
        return DUE if self._cost <= self.settings.budget * elapsed else NOT_DUE

    def want_deep_check(self) -> None:
        """Ranks come to the end of an epoch at different times: look with the next step they share."""
        self._is_deep_wanted = True

    # -- deferred -------------------------------------------------------------------------------

    def is_deferred(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer's steps are judged later, without a sync."""
        if not self.settings.deferred:
            return False
        known = self._can_defer.get(id(optimizer))
        if known is None:
            known = DeferredFlag.can_serve(optimizer) and not any(
                s.is_enabled() for s in self.state.scalers
            )
            self._can_defer[id(optimizer)] = known
        return known

    def step_deferred(self, window: Window, optimizer: Optimizer, call: Callable[[], Any]) -> Any:
        """Issue the step with the flag on the device; `collect` tells later how it went."""
        grads = [local(g) for g in self._grads(optimizer)]
        window.losses = [(step, t.detach()) for step, t in window.losses]
        losses = [local(t) for _, t in window.losses]
        if self._deferred is None:
            device = grads[0].device if grads else losses[0].device
            self._deferred = DeferredFlag(device)
        checked = [window.norm.clone()] if window.norm is not None else grads
        self._deferred.arm(optimizer, [*checked, *(t.clone() for t in losses)])
        if self.is_shared(optimizer):
            self._deferred.share(self.ranks, self._wish())
        result = call()
        window.num_applied += 1
        window.is_moved = True
        self._deferred.submit(optimizer, window)
        return result

    def collect(self, is_last: bool = False) -> tuple[list[Window], Window | None, list[Window]]:
        """What is known by now of the deferred steps."""
        if self._deferred is None:
            return [], None, []
        found = self._deferred.collect(is_last, in_step=self.ranks.is_on)
        self._is_deep_agreed = self._is_deep_agreed or self._deferred.is_due
        return found

    def explain(self, window: Window, optimizers: list[Optimizer]) -> Failure | None:
        """Which symptom it is; None for a norm that overflowed over finite gradients."""
        for step, loss in [*window.losses, *window.suspects]:
            if not is_finite(loss):
                return Failure("loss", step, value=_number(loss))
        for p, grad in self.state.grads(optimizers):
            if not is_finite(grad):
                return Failure("gradient", window.step, name=self.state.name_of(p))
        return None

    def _grads(self, optimizer: Optimizer) -> list[Tensor]:
        return [g for group in optimizer.param_groups for p in group["params"] if (g := p.grad) is not None]  # fmt: skip

    def _new_flag(self, optimizer: Optimizer, grads: list[Tensor]) -> FiniteFlag:
        first = grads[0] if grads else optimizer.param_groups[0]["params"][0]
        flag = self._flags[id(optimizer)] = FiniteFlag(first.device)
        return flag

    # -- healthy steps ------------------------------------------------------------------------

    def prime(self) -> None:
        """Before the first step: what is bad already, and the first snapshot."""
        self._has_world = has_world()
        if self._has_world:
            self.ranks.mark()
        if self._is_primed:
            return
        self._is_primed = True
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
        self.log.clear()
        self._log_bytes = 0

    def forget_due(self) -> None:
        """The training went back: what was checked is no longer there."""
        self._due = None
        self._log_bytes = 0
        self._unseen.clear()

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
            loss = window.losses[-1][1]
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
                # A clock read every few steps is enough; the interval is in steps' worth of time.
                if len(self.log) % 8 and not self._is_log_full() and not self._is_urgent():
                    return None
        return self.deep_check(window.step) if self._is_deep_due() else None

    def _is_log_full(self) -> bool:
        return len(self.log) >= self.settings.max_batches or self._log_bytes > _MAX_LOG_BYTES

    def _is_urgent(self) -> bool:
        return self._is_deep_wanted or self.ranks.has_others

    def _is_deep_due(self) -> bool:
        if self.ranks.is_on:
            is_due, self._is_deep_agreed = self._is_deep_agreed, False
            return is_due
        if self._is_deep_wanted:
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

    # -- incidents ----------------------------------------------------------------------------

    def records(self) -> tuple[StepRecord, ...]:
        return tuple(
            StepRecord(
                step=step,
                epoch=epoch,
                loss=_number(loss),
                grad_norm=_number(norm),
                lr=lr,
                scale=_number(scale),
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


def read_scalars(flag: FiniteFlag | None, scalars: list[Tensor]) -> list[float] | None:
    """Their values in one read; None if one of them, or anything shown to the flag, is not finite."""
    parts = [flag.value, *scalars] if flag is not None else scalars
    is_here = all(t.device.type == "cpu" for t in parts)
    device, dtype = parts[0].device, torch.float64 if is_here else torch.float32
    flat = [t.detach().to(device, dtype).reshape(()) for t in parts]
    values: list[float] = torch.stack(flat).tolist()
    is_bad = not all(map(math.isfinite, values))
    if flag is not None and values.pop(0) != 0.0:
        flag.reset()
        is_bad = True
    return None if is_bad else values


def _bad_rate(window: Window, optimizer: Optimizer) -> Failure | None:
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if isinstance(rate, float) and not math.isfinite(rate):
            return Failure("learning_rate", window.step, name="lr", value=rate)
    return None


def new_incident_id(step: int) -> str:
    return f"step{step:06d}-{uuid.uuid4().hex[:6]}"


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def environment() -> dict[str, str]:
    """What a reader of the incident needs to know of the machine."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.system().lower(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
    for name in ("lightning", "transformers", "accelerate"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(getattr(module, "__version__", "?"))
    return found


def _still(scale: Any) -> Any:
    """The scaler changes its scale in place; this value stays what it is now, without a sync."""
    if not isinstance(scale, Tensor):
        return scale
    return scale.item() if scale.device.type == "cpu" else scale.clone()


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            return None
        return float(value.detach())
    return float(value)
