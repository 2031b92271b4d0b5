"""The way back to mixed precision: fp32 until stable, then AMP with a rising scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..devices import accelerator, has_accelerator
from ..errors import UsageError

__all__ = ["PrecisionRamp", "RampMove"]

_NEVER = 2**31 - 1
_DTYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class RampMove:
    """One change of the precision or of the loss scale, with the reason."""

    step: int
    before: str
    after: str
    reason: str


class PrecisionRamp:
    """Trains in fp32 until that is stable, then in half precision with a conservative loss scale.

    Pass `ramp.scaler` to the guard (or use it like any GradScaler) and compute the loss under `ramp.autocast()`. In fp32 the scale
    is exactly 1, which changes no bit. `device_type` is that of the available accelerator, or "cpu".

        ramp = PrecisionRamp(stable_steps=2000)
        guard = Guard(model, optimizer, ramp=ramp)

    It uses fp32 for `stable_steps` steps (or `stable_epochs` epochs) without an incident, then AMP at the first of `scales`,
    watched for `watch_batches` batches, then the next scale. After an incident under AMP it returns to fp32, and the next attempt
    waits `patience` times as long. After more than `max_skips` skips of the scaler within one watch it returns to the previous
    scale. A rising validation loss (`note_validation`) prevents each move up, and also returns to fp32. `moves` lists every move.

    >>> ramp = PrecisionRamp(stable_steps=2, watch_batches=3, device_type="cpu")
    >>> for _ in range(5):
    ...     ramp.note_applied()
    >>> [(m.before, m.after) for m in ramp.moves]
    [('fp32', 'float16 at scale 1024'), ('float16 at scale 1024', 'float16 at scale 4096')]
    >>> ramp.note_incident("the loss is nan")
    >>> ramp.precision, ramp.moves[-1].reason
    ('fp32', 'the loss is nan; next attempt after 4 stable steps')
    """

    def __init__(
        self,
        *,
        stable_steps: int | None = None,
        stable_epochs: int | None = None,
        device_type: str | None = None,
        dtype: torch.dtype = torch.float16,
        scales: tuple[float, ...] = (2.0**10, 2.0**12, 2.0**14, 2.0**16),
        growth_interval: int = 1000,
        watch_batches: int = 100,
        max_skips: int = 2,
        patience: float = 2.0,
        on_move: Callable[[RampMove], None] | None = None,
        max_rise: float = 0.05,
    ) -> None:
        if (stable_steps is None) == (stable_epochs is None):
            raise UsageError("give either `stable_steps` or `stable_epochs`")
        _check(stable_steps or stable_epochs, scales, watch_batches, patience, dtype)
        self.dtype = dtype
        at_hand = accelerator() if has_accelerator() else None
        self.device_type = device_type or at_hand or "cpu"
        self.scales = scales if dtype == torch.float16 else (1.0,)
        self.watch_batches = watch_batches
        self.on_move = on_move
        self.moves: list[RampMove] = []
        self._by_epochs = stable_epochs is not None
        self._wanted = stable_steps or stable_epochs or 1
        self._growth_interval = growth_interval
        self._max_skips = max_skips
        self._patience = patience
        self._rung = -1
        self._stable = 0
        self._watched = 0
        self._skips = 0
        self._fails = 0
        self._step = 0
        self._max_rise = max_rise
        self._best: float | None = None
        self._has_risen = False
        self.scaler = torch.amp.GradScaler(self.device_type, init_scale=1.0, growth_interval=_NEVER)

    @property
    def is_on(self) -> bool:
        """Whether half precision is used now."""
        return self._rung >= 0

    @property
    def precision(self) -> str:
        """The current precision, as text."""
        if not self.is_on:
            return "fp32"
        name = str(self.dtype).removeprefix("torch.")
        return f"{name} at scale {self.scales[self._rung]:g}" if len(self.scales) > 1 else name

    def autocast(self) -> torch.autocast:
        """The context for the forward pass and the loss."""
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.is_on)

    def note_applied(self) -> None:
        """Note an applied step."""
        self._step += 1
        if not self.is_on:
            if not self._by_epochs:
                self._grow_stable("steps")
            return
        self._watched += 1
        is_next = self._watched >= self.watch_batches and not self._has_risen
        if is_next and self._rung + 1 < len(self.scales):
            self._move(self._rung + 1, f"{self._watched} batches without an incident")

    def note_validation(self, loss: float) -> None:
        """Note the validation loss, if the loop has one: a rise prevents half precision.

        In fp32 an epoch or a wait counts only if it does not rise by more than `max_rise` over the best so far. Under AMP such a
        rise, or a NaN, returns to fp32.
        """
        best = self._best
        self._has_risen = not math.isfinite(loss) or (
            best is not None and loss > best + self._max_rise * abs(best)
        )
        if math.isfinite(loss):
            self._best = loss if best is None else min(best, loss)
        if not self._has_risen:
            return
        shown = f"the validation loss is {loss:.4g}" + (
            f", the best was {best:.4g}" if best is not None else ""
        )
        self._stable = -1 if self._by_epochs else 0
        if self.is_on:
            self._fails += 1
            unit = "epochs" if self._by_epochs else "steps"
            self._move(-1, f"{shown}; next attempt after {self._target()} stable {unit}")

    def note_epoch(self) -> None:
        """Note the end of an epoch; it counts if `stable_epochs` is set and it had no incident."""
        if not self.is_on and self._by_epochs:
            self._grow_stable("epochs")

    def note_skip(self) -> None:
        """Note a skip of the scaler; too many of them lower the scale."""
        self._step += 1
        self._skips += self.is_on
        if self._skips > self._max_skips:
            self._move(self._rung - 1, f"{self._skips} skipped steps in {self._watched} batches")

    def note_incident(self, reason: str) -> None:
        """Note an incident: return to fp32, and wait longer before the next attempt."""
        self._step += 1
        self._stable = -1 if self._by_epochs else 0
        if self.is_on:
            self._fails += 1
            unit = "epochs" if self._by_epochs else "steps"
            self._move(-1, f"{reason}; next attempt after {self._target()} stable {unit}")

    def _grow_stable(self, unit: str) -> None:
        self._stable += 1
        if self._stable >= self._target():
            self._move(0, f"{self._stable} stable {unit}")

    def _target(self) -> int:
        return round(self._wanted * self._patience**self._fails)

    def _move(self, rung: int, reason: str) -> None:
        before = self.precision
        self._rung = rung
        self._stable = self._watched = self._skips = 0
        self._set_scale()
        move = RampMove(self._step, before, self.precision, reason)
        self.moves.append(move)
        if self.on_move is not None:
            self.on_move(move)

    def refresh(self) -> None:
        """Restore the scale of the current stage, after other code has restored the scaler."""
        self._set_scale()

    def _set_scale(self) -> None:
        value = self.scales[self._rung] if self.is_on else 1.0
        can_grow = self.is_on and len(self.scales) > 1
        self.scaler.set_growth_interval(self._growth_interval if can_grow else _NEVER)
        scale, tracker = self.scaler._scale, self.scaler._growth_tracker
        if scale is None or tracker is None:
            self.scaler._init_scale = value
        else:
            scale.fill_(value)
            tracker.zero_()

    def state_dict(self) -> dict[str, Any]:
        """The state of the ramp for a checkpoint, as plain values."""
        keys = ("_rung", "_stable", "_watched", "_skips", "_fails", "_step", "_best")
        state: dict[str, Any] = {k.lstrip("_"): getattr(self, k) for k in keys}
        return {
            **state,
            "scaler": self.scaler.state_dict(),
            "moves": [asdict(m) for m in self.moves],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        if not -1 <= state["rung"] < len(self.scales):
            raise UsageError(
                f"the saved ramp is at scale number {state['rung']}, this one has {len(self.scales)}"
            )
        for key in ("rung", "stable", "watched", "skips", "fails", "step"):
            setattr(self, f"_{key}", state[key])
        self._best = state.get("best")
        self.moves = [RampMove(**m) for m in state["moves"]]
        self.scaler.load_state_dict(state["scaler"])


def _check(
    wanted: int | None, scales: tuple[float, ...], watch: int, patience: float, dtype: torch.dtype
) -> None:
    problems = []
    if not isinstance(wanted, int) or wanted < 1:
        problems.append(f"`stable_steps` or `stable_epochs` must be at least 1, got {wanted!r}")
    if not scales or any(s <= 0 for s in scales) or list(scales) != sorted(scales):
        problems.append(f"`scales` must be positive and rising, got {scales!r}")
    if watch < 1:
        problems.append(f"`watch_batches` must be at least 1, got {watch!r}")
    if patience < 1:
        problems.append(f"`patience` must be at least 1, got {patience!r}")
    if dtype not in _DTYPES:
        problems.append(f"`dtype` must be torch.float16 or torch.bfloat16, got {dtype}")
    if problems:
        raise UsageError("\n  - ".join(["wrong settings of the PrecisionRamp:", *problems]))
