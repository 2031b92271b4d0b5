"""Issues the warnings: spikes, climbs, limits, untrained tensors."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TypeGuard

import torch
from torch import Tensor

from ...detect import SpikeWatch
from ...devices import widest
from ...patches.firewall import Firewall
from ...records import Event
from ...recover.policy import Policy
from ...report.terminal import say_warning
from ..host import Host
from ..ranks.agreement import RankFailure
from ..state import TrainState
from ..window import Failure, Window
from .headroom import Headroom
from .limits import Limit, everywhere
from .operators import OperatorWatch
from .untrained import untrained_weights

__all__ = ["SPIKE_NAMES", "Monitor"]

_LOUD = 3.0
"""A spike is printed only from this multiple of the usual value; small batches have heavy tails."""
SPIKE_NAMES = {"loss": "loss", "grad_norm": "gradient norm"}


class Monitor:
    """Compares each step with the usual, and collects and prints the warnings of one training."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.warnings: deque[Event] = deque(maxlen=1000)
        self._num_warnings: Counter[tuple[str, str | None]] = Counter()
        self.limits: list[Limit] = []
        self.headroom = Headroom()
        self.operators = OperatorWatch(host.settings.budget)
        self._firewall = Firewall("the early warning of operators", self.operators.close)
        self.loss_watches: defaultdict[int, SpikeWatch] = defaultdict(lambda: SpikeWatch(ratio=1.5))
        """By optimizer id."""
        self._norm_watches: defaultdict[int, SpikeWatch] = defaultdict(
            lambda: SpikeWatch(ratio=3.0)
        )
        self._has_checked_untrained = False
        self._is_blind = host.policy.on_spike == "ignore"

    @property
    def policy(self) -> Policy:
        return self._host.policy

    @property
    def state(self) -> TrainState:
        return self._host.state

    def forget_after(self, step: int) -> None:
        """The training was rolled back to this step."""
        for watch in (*self.loss_watches.values(), *self._norm_watches.values()):
            watch.forget_after(step)
        self.headroom.forget_after(step)
        self.operators.forget()

    def compare(self, window: Window, loss: float | None, norm: float | None) -> Failure | None:
        """Compare this step's finite loss and norm with the usual; a Failure if the policy acts on a spike."""
        if self._is_blind:
            return None
        found: Failure | None = None
        step = window.batches[-1].step
        if loss is not None:
            watch = self.loss_watches[window.optimizer_id]
            if not watch.is_quiet(step, loss):
                found = self._judge(window, "loss", watch, loss)
        if norm is not None:
            watch = self._norm_watches[window.optimizer_id]
            if not watch.is_quiet(step, norm):
                found = self._judge(window, "grad_norm", watch, norm) or found
        return found

    def _judge(
        self, window: Window, name: str, watch: SpikeWatch, value: float
    ) -> Failure | None:  # fmt: skip
        ranks = self._host.ranks
        spike = watch.note(window.step, value)
        self.headroom.check_figure(self, window, name, watch)
        if watch.is_first(spike):
            assert spike is not None
            text = spike.describe(SPIKE_NAMES[name])
            is_loud = spike.is_alarm and value > _LOUD * abs(spike.usual)
            self._warn_of_spike(window, name, text, value, is_loud)
        # Each rank has a loss of its own; the norm after the all-reduce is the same for all.
        acts = self.policy.on_spike != "warn" and (name != "loss" or not ranks.is_together)
        if spike is None or not spike.is_alarm or not acts:
            return None
        if ranks.is_together:
            return RankFailure("spike", window.step, name, value, rank=ranks.first)
        return Failure("spike", window.step, name=name, value=value)

    def plan_look(self) -> None:
        """Perhaps look at the operators of the next step. Called when the clock is read anyway."""
        if not self._is_blind:
            self.operators.plan()

    def look(self, window: Window, loss: Tensor) -> None:
        """Look at the operators behind this loss, before its backward, if it is time for it."""
        if self.operators.is_due and not self._is_blind:
            self._firewall.call(self.operators.look, self, window, loss)

    def compare_late(self, step: int, uncompared: list[Window]) -> Failure | None:
        """At a deep check: compare figures that were not read yet, and check the watched parameters."""
        known = {} if self._is_blind else _read_together(uncompared)
        for window in uncompared if known else ():
            window.loss = known[id(window)][0]
        spikes = [f for w in uncompared if (f := self.compare(w, *known[id(w)])) is not None]
        for limit in (*self.limits, *everywhere):
            limit.check(self, step)
        self.headroom.check_weights(self, step)
        if not self._has_checked_untrained:
            self._has_checked_untrained = True
            self._warn_of_untrained(step)
        # These steps are applied already, so the only possible action is a rollback.
        return spikes[0] if spikes and self.policy.on_spike in ("rollback", "raise") else None

    def _warn_of_untrained(self, step: int) -> None:
        """Warn of tensors that no optimizer trains. An error here must not end the training."""
        try:
            event = untrained_weights(self.state, step)
        except Exception:
            return
        if event is not None:
            self.warn(event)

    def warn(self, event: Event, is_printed: bool = True) -> None:
        """Record and print a warning: a spike, a limit, a resumed learning rate."""
        self.warnings.append(event)
        host = self._host
        self._num_warnings[event.kind, event.name] += 1
        if is_printed and (host.ranks.is_first or not host.ranks.has_others):
            say_warning(event, self._num_warnings[event.kind, event.name])
        if host.journal is not None:
            host.journal.file.event(
                "warning", step=event.step, about=event.kind, name=event.name, value=event.value,
                text=event.message,
            )  # fmt: skip

    def _warn_of_spike(
        self, window: Window, name: str, text: str, value: float, is_loud: bool
    ) -> None:
        """Warn of a spike; it is printed only if it is far above the usual."""
        self.warn(
            Event(
                step=window.step, epoch=window.epoch, kind="spike", value=value, name=name,
                phase="loss" if name == "loss" else "backward",
                symptom="loss" if name == "loss" else "gradient",
                lr=self.state.lrs(), message=text,
            ),
            is_printed=is_loud,
        )  # fmt: skip


def _read_together(windows: list[Window]) -> dict[int, tuple[float | None, float | None]]:
    """Loss and norm of many steps in one transfer, by the windows' identity.

    Sharded norms and complex losses are not compared with anything, so they are not read.
    """
    pairs = [(w.losses[-1][1] if w.losses else None, w.norm) for w in windows]
    plain = [t for pair in pairs for t in pair if _is_number(t)]
    values: list[float] = []
    if plain:
        device = plain[0].device
        values = torch.stack([t.detach().to(device, widest(device)) for t in plain]).tolist()
    known = dict(zip(map(id, plain), values))
    return {id(w): (known.get(id(a)), known.get(id(b))) for w, (a, b) in zip(windows, pairs)}


def _is_number(value: object) -> TypeGuard[Tensor]:
    """A plain real scalar on a device."""
    return type(value) is Tensor and not value.dim() and not value.is_complex()
