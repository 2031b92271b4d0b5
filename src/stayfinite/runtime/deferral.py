"""Deferred checks: their result is read later, so that the host never waits for the device."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from ..detect.deferred import DeferredFlag
from .host import Host
from .outside_modes import outside_user_modes
from .ranks.meetings import NOT_DUE
from .ranks.shards import local
from .ranks.shared_check import SharedCheck
from .window import Failure, Window

__all__ = ["Deferral"]


class Deferral:
    """Issues steps whose verdict stays on the device, and collects the verdicts later."""

    defers_on_host = False
    """Whether to defer on the CPU too, where reading the flag costs nothing. For tests."""

    def __init__(self, host: Host, shared: SharedCheck) -> None:
        self._host = host
        self._shared = shared
        self._flag: DeferredFlag[Window] | None = None
        self._can_defer: dict[int, bool] = {}
        self._armed = 0

    @property
    def is_under_way(self) -> bool:
        """Whether any step was deferred."""
        return self._flag is not None

    @property
    def is_waiting(self) -> bool:
        """Whether the verdict of a step is still open."""
        return self._flag is not None and self._flag.is_waiting

    def serves(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer's steps are deferred."""
        if not self._host.settings.deferred or self._host.ranks.is_joining():
            return False
        known = self._can_defer.get(id(optimizer))
        if known is None:
            known = self._is_worth_it(optimizer) and DeferredFlag.can_serve(optimizer)
            known = known and not self._host.state.is_scaled
            self._can_defer[id(optimizer)] = known
        return known

    def _is_worth_it(self, optimizer: Optimizer) -> bool:
        if self.defers_on_host or self._host.ranks.has_others:
            return True
        params = [p for g in optimizer.param_groups for p in g["params"]]
        return any(p.device.type != "cpu" for p in params)

    @outside_user_modes
    def arm(self, window: Window, optimizer: Optimizer) -> None:
        """Let the optimizer's kernel read the flag on the device and skip a bad step; `collect` returns the verdict."""
        host = self._host
        window.shadows = host.state.buffers.copies
        if len(host.state.schedulers):
            window.small_state = host.state.capture_small()
        window.optimizer_id = id(optimizer) if len(host.state.optimizers) > 1 else 0
        window.losses = [(step, t.detach()) for step, t in window.losses]
        # The check writes back what it reads. Through `data` it does not change the version counters of the
        # loop's loss and norm, and needs no copies.
        checked: list[Tensor] = [g for _, g in host.state.grads([optimizer])]
        if window.norm is not None:
            checked = [window.norm.data]
        checked += [t.data for _, t in window.losses]
        checked = [local(t) for t in checked]
        if self._flag is None:
            some = checked or optimizer.param_groups[0]["params"]
            self._flag = DeferredFlag(some[0].device)
        self._flag.arm(optimizer, checked)
        self._armed = id(optimizer)
        if self._shared.is_shared(optimizer):
            pair = host.ranks.reduce_flag(self._flag.flag.value, host.deep_checks.vote().kind)
            self._flag.share(pair[0], pair[1] != NOT_DUE)
            host.ranks.summary.end_step()

    def is_armed(self, optimizer: Optimizer) -> bool:
        return self._armed == id(optimizer)

    @outside_user_modes
    def submit(self, window: Window, optimizer: Optimizer) -> None:
        """Note that the step was issued."""
        assert self._flag is not None
        self._armed = 0
        self._flag.disarm(optimizer)
        window.num_applied += 1
        window.is_moved = True
        self._flag.submit(window)

    @outside_user_modes
    def collect(self, is_last: bool = False) -> tuple[list[Window], Window | None, list[Window]]:
        """(steps that were finite, the first bad one, those skipped after it)."""
        if self._flag is None:
            return [], None, []
        fine, bad, later = self._flag.collect(is_last, in_step=self._host.ranks.is_together)
        self._shared.note_agreed(self._flag.is_due)
        if bad is not None and bad.shadows is not None:
            self._host.state.buffers.use(bad.shadows)
        for window in (*fine, *later):
            window.small_state = window.shadows = None
        for window in (*fine, *later, *([bad] if bad is not None else [])):
            window.is_moved = False
        return fine, bad, later

    def close_fine(self, fine: list[Window], bad: Window | None) -> tuple[Window, Failure] | None:
        """Close finite steps; returns the one at which a deep check found something, and what."""
        for i, window in enumerate(fine):
            is_followed = i + 1 < len(fine) or bad is not None or self.is_waiting
            failure = self._host.close_healthy(window, is_followed)
            if failure is not None:
                return window, failure
        return None
