"""The sentinel: may this step be applied? One fused pass and one read, or none at all."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..config import Settings
from ..numerics.health import FiniteFlag, is_finite
from .deferred import DeferredFlag, in_memory
from .ranks import RankFailure, Ranks, local
from .recovery import Recovery
from .state import TrainState
from .window import Failure, Window

__all__ = ["Sentinel", "number_of"]

_INF = math.inf
_item = torch._C.TensorBase.item  # without the wire round Tensor.item


class Sentinel:
    """Looks at loss and gradients before the optimizer moves; the `Core` is one."""

    recovery: Recovery
    defers_on_host = False
    """Where the training runs in the host's memory nothing waits for anything, so there is nothing to
    put off: the flag and the loss are read where they lie, at once. Tests of the deferral set it."""

    def __init__(self, state: TrainState, settings: Settings) -> None:
        self.state = state
        self.settings = settings
        self.ranks = Ranks()
        self._flags: dict[int, FiniteFlag] = {}
        self._deferred: DeferredFlag | None = None
        self._can_defer: dict[int, bool] = {}
        self._has_world = False
        self._has_met = False
        self._is_deep_agreed = False

    def meet(self) -> None:
        """The first step that several ranks share."""

    def wish(self) -> int:
        """What this rank wants to follow the step: see `ranks`."""
        raise NotImplementedError

    def check(self, window: Window, optimizer: Optimizer) -> Failure | None:
        """Whether this step may be applied: all finite, and no spike that the policy acts on.

        Loss and gradients in one fused pass and one read; learning rates by a look.
        """
        if len(self.state.optimizers) > 1:
            window.mover = id(optimizer)
        if self._has_world:
            if self.is_shared(optimizer):
                return self.check_together(window, optimizer) or self.see(window)
            if self.ranks.is_joining():
                return None
        grads: list[Tensor] = []
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if type(rate) is not float or not -_INF < rate < _INF:
                bad = _bad_rate(window, group)
                if bad is not None:
                    return bad
            grads += [g for p in group["params"] if (g := p.grad) is not None]
        losses = window.losses
        if window.norm is not None or len(losses) != 1 or not grads:
            return self._check_several(window, optimizer, grads)
        flag = self._flags.get(id(optimizer)) or self._new_flag(optimizer, grads)
        if flag.here is None:
            return self._check_several(window, optimizer, grads)
        # Nearly every step of a training on the CPU comes by here, so nothing is called for nothing.
        flag.fold(grads)
        value = _item(losses[0][1]) if not self.settings.deferred else in_memory(losses[0][1])
        if flag.here.value != 0.0 or not -_INF < value < _INF:
            flag.reset()
            return self.explain(window, [optimizer])
        window.is_seen = True
        window.loss = value
        window.losses = []  # with the graph that hangs on it
        if self.recovery.loss_watches[window.mover].is_quiet(window.batches[-1].step, value):
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
            flag, scalars = (
                self._flags.get(id(optimizer)) or self._new_flag(optimizer, grads),
                losses,
            )
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
        return self.recovery.see(window, *(number_of(t) for t in (loss, window.norm)))

    # -- several ranks -------------------------------------------------------------------------

    def is_shared(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer's step is decided by several ranks together."""
        if not self.ranks.is_shared(optimizer) or self.ranks.is_joining():
            return False
        if not self._has_met:
            self._has_met = True
            self.meet()
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
        bad_rates = (_bad_rate(window, g) for g in optimizer.param_groups)
        rate = next((r for r in bad_rates if r is not None), None)
        flag = self._flags.get(id(optimizer)) or self._new_flag(optimizer, checked)
        flag.fold(checked)
        if rate is not None:
            flag.value.fill_(1.0)
        agreed = self.ranks.agree_on_flag(flag.value, self.wish())
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

    # -- deferred -------------------------------------------------------------------------------

    @property
    def is_deferring(self) -> bool:
        """Whether any step's verdict was put off."""
        return self._deferred is not None

    def is_deferred(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer's steps are judged later, without a sync."""
        if not self.settings.deferred:
            return False
        known = self._can_defer.get(id(optimizer))
        if known is None:
            known = self._is_worth_it(optimizer) and DeferredFlag.can_serve(optimizer)
            known = known and not self.state.is_scaled
            self._can_defer[id(optimizer)] = known
        return known

    def _is_worth_it(self, optimizer: Optimizer) -> bool:
        if self.defers_on_host or self._has_world:
            return True
        params = [p for g in optimizer.param_groups for p in g["params"]]
        return any(p.device.type != "cpu" for p in params)

    def step_deferred(self, window: Window, optimizer: Optimizer, call: Callable[[], Any]) -> Any:
        """Issue the step with the flag on the device; `collect` tells later how it went."""
        window.mover = id(optimizer) if len(self.state.optimizers) > 1 else 0
        window.losses = [(step, t.detach()) for step, t in window.losses]
        # The check writes what it reads: the loop keeps its loss and its norm as they are.
        checked = [window.norm.clone()] if window.norm is not None else self._grads(optimizer)
        checked += [t.clone() for _, t in window.losses]
        if self._has_world:
            checked = [local(t) for t in checked]
        if self._deferred is None:
            some: list[Tensor] = checked or optimizer.param_groups[0]["params"]
            self._deferred = DeferredFlag(some[0].device)
        self._deferred.arm(optimizer, checked)
        if self._has_world and self.is_shared(optimizer):
            self._deferred.share(self.ranks, self.wish())
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
                return Failure("loss", step, value=number_of(loss))
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


def _bad_rate(window: Window, group: dict[str, Any]) -> Failure | None:
    """A rate is a number of Python's or NumPy's; one in a tensor is seen by what it does."""
    rate = group.get("lr")
    if not isinstance(rate, numbers.Real) or math.isfinite(rate):
        return None
    return Failure("learning_rate", window.step, name="lr", value=float(rate))


def number_of(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            return None
        return float(value.detach())
    return float(value)
