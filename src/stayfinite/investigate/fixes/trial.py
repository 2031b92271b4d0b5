"""Runs a source change: the failing step, healthy steps before it, steps after it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...records import ON_OTHER_BATCHES, Proof
from ...runtime.window import Change, Replay, ReplayResult, Window
from ...sandbox.compute import computing_only
from ..budget import Budget
from ..evidence.data_facts import other_batches
from ..laboratory import Laboratory
from .measured import Distance, mean_of, relative_change, size_of, tolerance

__all__ = ["Trial"]

_NUM_HEALTHY = 3
_NUM_AFTER = 6
_NUM_AHEAD = 16
_SINCE = 24
"""The minimum number of steps for a setting that has acted since the last healthy state."""
_FAR = 10.0
_RISEN = 3.0
_HIGH = 30.0
_MOVED = 2e-3
_MAX_REPLAYS = 48
"""The time for all changes of one incident; a running trial is finished."""
_ABSURD = 1e6
_ABSURD_FLOOR = 1e3
"""A quotient by a floor may be finite and still absurd."""
_EXACT = 2e-6
_PAST_THE_ERROR = "what raised runs and gives finite values; the rest of the step was not run"
_LONE = "the step has no gradient, since a single element has no deviation to learn from"
_SPREAD = ("std", "var", "std_mean", "var_mean")


@dataclass(frozen=True)
class _Healthy:
    window: Window
    losses: Sequence[float]
    norm: float | None
    is_from_snapshot: bool = False
    """Whether it is healthy only with the weights of the last healthy state, and not with the current ones."""


class Trial:
    """Tries changes for one incident."""

    def __init__(self, lab: Laboratory, seconds: float) -> None:
        self.lab = lab
        self.budget = Budget(seconds)
        self._healthy: list[_Healthy] | None = None
        self._is_exact, self._room = False, 0.0
        self._others: list[Window] | None = None
        self.failed_ahead: Window | None = None
        """A batch that was not seen before and fails with the last change."""
        self.num_replays = 0
        self.is_in_state = False
        """Whether batches that were healthy fail now, so that the problem grows and this batch is not special."""

    @property
    def has_time(self) -> bool:
        return not self.budget.is_over and self.num_replays < _MAX_REPLAYS

    @property
    def can_compare(self) -> bool:
        """Whether healthy steps are known, or may be found."""
        return self._healthy is None or bool(self._healthy)

    @property
    def is_late(self) -> bool:
        return self.budget.is_over

    @property
    def _windows(self) -> list[Window]:
        """Earlier steps whose batches are available, the last first."""
        engine, mine = self.lab.investigation.engine, self.lab.window
        kept = [*engine.log.recent, *engine.log]
        found = [
            w for w in reversed(kept)
            if w is not mine and w.step < mine.step and self.lab.investigation.vehicle.can_run(w)
        ]  # fmt: skip
        return list({id(w): w for w in found}.values())

    def prove(
        self,
        change: Change,
        dtype: str,
        limits_gradients: bool = False,
        is_compared: bool = True,
        is_flat: bool = False,
        is_exact: bool = False,
        room: float = 0.0,
    ) -> Generator[Replay, ReplayResult, tuple[Proof, ReplayResult]]:
        """What the change does; and the replay of the failing step with it.

        `is_compared`: whether healthy steps should give the same as before; not where they have read memory
        that nobody wrote. `is_flat`: the change gives a constant where it acts, which may teach nothing.
        `is_exact`: it acts on healthy steps too, and is right only where that cancels out. `room`: how much of
        their loss it may change by its nature.
        """
        self.failed_ahead = None
        self._is_exact, self._room = is_exact, room
        with computing_only():  # entered only once: each replay would open and close it again
            return (yield from self._prove(change, dtype, limits_gradients, is_compared, is_flat))

    def _prove(
        self,
        change: Change,
        dtype: str,
        limits_gradients: bool,
        is_compared: bool,
        is_flat: bool,
    ) -> Generator[Replay, ReplayResult, tuple[Proof, ReplayResult]]:
        lab = self.lab
        with lab.restored():
            result = yield from self._once(lab.window, change, True, is_applied=lab.needs_step)
        if lab.window.error is not None and result.is_complete and not result.losses:
            with lab.restored():  # what raised runs now; up to the step
                result = yield from self._once(lab.window, change, True, is_applied=True)
        if result.failure is not None:
            return Proof(note="the step is still not finite"), result
        if not result.is_complete:
            return Proof(note="the changed source did not run to its end"), result
        number, largest, note = 0, None, ""
        if is_compared:
            number, largest, note = yield from self._compared(change, dtype, limits_gradients)
        note = note or self._is_absurd(result, _ABSURD_FLOOR if is_flat else _ABSURD)
        is_alone = not (number or self._windows or self._unseen() or lab.had_no_gradient)
        if lab.window.error is not None and not (result.losses or note):
            note = _PAST_THE_ERROR
        is_lone = result.grad_norm == 0.0 and self._is_deviation_of_one()
        if (self.is_in_state or is_alone) and result.grad_norm == 0.0 and not (note or is_lone):
            note = "it leaves no gradient to learn from"  # in this step, and in all that fail in the same way
        made = Proof(is_step_finite=True, num_healthy=number, largest_change=largest, note=note)
        if note:
            return made, result
        after, note, is_bad = yield from self._after(change, dtype)
        if is_flat and not note:
            note = yield from self._is_stuck(change)
        if is_lone and not after and not is_bad:
            note = f"{_LONE}; {note}"
        made = replace(made, num_after=after, note=note, is_step_finite=not is_bad)
        return made, result

    def _is_deviation_of_one(self) -> bool:
        """Whether the failed operator is a deviation over one element, which is 0 whatever the weights are."""
        birth = self.lab.origin.birth if self.lab.origin is not None else None
        is_one = birth is not None and birth.facts.get("num_reduced", 2.0) <= 1.0
        return is_one and birth is not None and birth.op.rpartition(".")[2] in _SPREAD

    def healthy_effect(
        self, change: Change, dtype: str, limits_gradients: bool
    ) -> Generator[Replay, ReplayResult, str]:
        """A note if it changes healthy steps; checked before other changes are tried on top of it."""
        with computing_only():
            _, _, note = yield from self._compared(change, dtype, limits_gradients)
        return note

    def prove_since(
        self, change: Change, at: Callable[[Window], AbstractContextManager[None]] | None
    ) -> Generator[Replay, ReplayResult, tuple[Proof, ReplayResult]]:
        """Replay all steps since the last healthy state with the change, this one, and those once more."""
        with computing_only():
            return (yield from self._prove_since(change, at))

    def _prove_since(
        self, change: Change, at: Callable[[Window], AbstractContextManager[None]] | None
    ) -> Generator[Replay, ReplayResult, tuple[Proof, ReplayResult]]:
        lab, state = self.lab, self.lab.state
        vehicle, windows = lab.trial_steps()
        result = ReplayResult(is_complete=False)
        if not windows:
            return Proof(note="the steps before it could not be run here"), result
        number, losses = 0, []
        with lab.restored():
            lab.to_snapshot()
            first = size_of(state)
            number_of_steps = max(len(windows) + _NUM_AFTER, _SINCE)
            for i, window in enumerate(itertools.islice(itertools.cycle(windows), number_of_steps)):
                lab.next_step(window, i >= len(windows))
                self.num_replays += 1
                result = yield Replay(
                    window=window, change=change, is_applied=True, vehicle=vehicle,
                    contexts=[at(window)] if at is not None else [],
                )  # fmt: skip
                if result.failure is not None:
                    return Proof(note="the steps before it are not finite with it either"), result
                if not result.is_complete:
                    return Proof(note="the changed source did not run to its end"), result
                number += 1
                losses += result.losses[-1:]
                lab.settle()
                if not size_of(state) <= _FAR * max(first, 1e-3):
                    return Proof(is_step_finite=True, note="it lets the weights run away"), result
        again = losses[len(windows) :] if not any(w.is_loaderless for w in windows) else []
        again = again[-len(windows) :]
        if again and mean_of(again) > 1.05 * abs(mean_of(losses[: len(again)])) + 1e-3:
            return Proof(is_step_finite=True, note="it leaves a loss that rises"), result
        note = "from the last healthy state on"
        return Proof(is_step_finite=True, num_after=number, note=note), result

    def _is_absurd(self, result: ReplayResult, limit: float) -> str:
        """Whether a loss is finite but useless."""
        usual = max((abs(v) for h in self._healthy or [] for v in h.losses), default=None)
        loss = max((abs(v) for v in result.losses), default=0.0)
        if loss > limit * ((usual or 0.0) + 1.0):
            return f"it leaves a loss of {loss:.2g}"
        return ""

    def _is_stuck(self, change: Change) -> Generator[Replay, ReplayResult, str]:
        """Whether a loss is far above the usual, and training on the same batch does not lower it."""
        lab = self.lab
        usual = max((abs(v) for h in self._healthy or [] for v in h.losses), default=math.inf)
        losses: list[float] = []
        with lab.restored():
            for _ in range(_NUM_AFTER):
                lab.state.clear_grads()
                if lab.window.rng is not None:
                    lab.window.rng.restore()
                self.num_replays += 1
                result = yield Replay(window=lab.window, change=change, is_applied=True)
                losses += result.losses[-1:]
                if not losses or result.failure is not None or losses[0] < _HIGH * usual:
                    return ""
                lab.state.buffers.copy()
        if losses[0] - min(losses) > _MOVED * losses[0]:
            return ""
        return f"it leaves a loss of {losses[0]:.3g} that training does not lower"

    def _once(
        self,
        window: Window,
        change: Change | None,
        wants_norm: bool = False,
        is_applied: bool = False,
        is_moved: bool = False,
    ) -> Generator[Replay, ReplayResult, ReplayResult]:
        """`is_moved`: the weights and buffers are not those of now, and stay what they are."""
        self.num_replays += 1
        if is_moved:
            self.lab.next_step(window)
        else:
            self.lab.start_of(window)
        return (
            yield Replay(
                window=window,
                change=change,
                wants_norm=wants_norm,
                is_applied=is_applied,
            )
        )

    def _known(self) -> Generator[Replay, ReplayResult, list[_Healthy]]:
        """Losses and gradients of healthy steps with the original source."""
        if self._healthy is not None:
            return self._healthy
        found, num_failed = [], 0
        seen = self._windows[:_NUM_HEALTHY]
        for window in seen or self._unseen()[:_NUM_HEALTHY]:
            if self.is_late:
                break
            with self.lab.restored():
                result = yield from self._once(window, None, wants_norm=True)
            num_failed += result.failure is not None and not window.is_loaderless
            if result.failure is None and result.is_complete and result.losses:
                found.append(_Healthy(window, tuple(result.losses), result.grad_norm))
        self.is_in_state = num_failed > 0 and not found and bool(seen)
        if self.is_in_state:
            found = yield from self._known_since()
        self._healthy = found
        return found

    def _known_since(self) -> Generator[Replay, ReplayResult, list[_Healthy]]:
        """Losses of the same batches with the weights of the last healthy state."""
        lab, found = self.lab, []
        if not lab.state.snapshot.is_taken or lab.investigation.engine.ranks.is_apart:
            return []
        for window in self._windows[:_NUM_HEALTHY]:
            with lab.restored():
                lab.to_snapshot()
                result = yield from self._once(window, None, wants_norm=True, is_moved=True)
            if result.failure is None and result.is_complete and result.losses:
                found.append(_Healthy(window, tuple(result.losses), result.grad_norm, True))
        return found

    def _compared(
        self, change: Change, dtype: str, limits_gradients: bool
    ) -> Generator[Replay, ReplayResult, tuple[int, float | None, str]]:
        largest: float | None = None
        number = 0
        for known in (yield from self._known()):
            with self.lab.restored():
                if known.is_from_snapshot:
                    self.lab.to_snapshot()
                result = yield from self._once(
                    known.window, change, wants_norm=True, is_moved=known.is_from_snapshot
                )
            if result.failure is not None or not result.is_complete:
                return (
                    number,
                    largest,
                    f"step {known.window.step}, which was healthy, fails with it",
                )
            number += 1
            new = relative_change(known.losses, result.losses)
            largest = max(largest or 0.0, new)
            usual = _EXACT if self._is_exact and dtype == "float32" else tolerance(dtype)
            if new > max(usual, self._room):
                return number, largest, f"it changes the loss of healthy steps by {new:.2g}"
            if known.norm and result.grad_norm is not None and not limits_gradients:
                # Only much smaller or larger ones: if the source was close to its limits, its own
                # gradients had partly overflowed.
                times = result.grad_norm / known.norm
                room = 1.01 if self._is_exact else 2.0
                if not 1 / room < times < room:
                    return (
                        number,
                        largest,
                        f"it makes the gradients of healthy steps {times:.2g} times as large",
                    )
        return number, largest, ""

    def _ahead(self, change: Change) -> Generator[Replay, ReplayResult, tuple[int, str, bool]]:
        """Where no batch was seen before: others of the same data set, each from the state of now."""
        number = 0
        for window in self._unseen():
            if self.is_late:
                break
            with self.lab.restored():
                result = yield from self._once(window, change)
            if result.failure is not None:
                self.failed_ahead = window
                return number, "another batch of the data set is not finite with it", True
            if not result.is_complete:
                break
            number += 1
        if not number:
            return 0, "no other batch was available to go on with", False
        return number, ON_OTHER_BATCHES, False

    def _unseen(self) -> list[Window]:
        if self._others is None:
            given = other_batches(self.lab.window, _NUM_AHEAD)
            self._others = [
                self.lab.window.with_values(partial(_instead, value)) for value in given
            ]
        return self._others

    def _after(
        self, change: Change, dtype: str
    ) -> Generator[Replay, ReplayResult, tuple[int, str, bool]]:
        """The failing step applied with the change, then batches that were seen before, on what came of it.

        Where what fails has grown over the steps, a change may only have moved the limit: then many steps are
        run, and in half precision some distance to the limit has to be left.
        """
        lab = self.lab
        others = self._windows[: _NUM_AFTER - 1][::-1]
        if not others:
            return (yield from self._ahead(change))
        windows = [lab.window, *others]
        number_of_steps = _SINCE if self.is_in_state else len(windows) + 1
        number, losses, distance = 0, [], Distance(dtype)
        with lab.restored():
            first = size_of(lab.state)
            for window in itertools.islice(itertools.cycle(windows), number_of_steps):
                if self.is_late:
                    return number, "time ran out before more steps after it were run", False
                lab.next_step(window)
                self.num_replays += 1
                is_watched = self.is_in_state and distance.is_of_use
                watched: list[AbstractContextManager[Any]] = [distance] if is_watched else []
                result = yield Replay(
                    window=window, change=change, is_applied=True, contexts=watched
                )
                if result.failure is not None:
                    return number, f"a step after it is not finite ({number + 1} steps on)", True
                if not result.is_complete:
                    return number, "the steps after it could not be run here", False
                number += 1
                lab.settle()
                losses += result.losses[-1:] if window is lab.window else []
            if not size_of(lab.state) <= _FAR * max(first, 1e-3):
                return number, "it lets the weights run away", False
        if self.is_in_state and len(losses) > 1 and losses[-1] > _RISEN * abs(losses[0]) + 1.0:
            return number, "it leaves a loss that rises", False
        if distance.is_near:
            return number, f"it leaves values of {distance.largest:.2g} in {dtype}", False
        return number - 1, "", False  # the first of them is the step itself


def _instead(new: Any, old: Any) -> Any:
    return new
