"""Runs experiments: the failing step again with one thing changed, with everything restored afterwards."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec

from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ..diagnose.evidence import Evidence, Quotient, Searched
from ..diagnose.experiments import question_of, runner_of
from ..diagnose.searched import describe_search
from ..locate.slice import Origin
from ..locate.trace import SourceRef
from ..records import Experiment, Link
from ..runtime.batches import named_tensors
from ..runtime.rng import RngState
from ..runtime.rows import num_rows, take_rows
from ..runtime.saved_state import StateCopy
from ..runtime.window import Change, Replay, ReplayResult, Window
from .budget import Budget
from .investigation import Investigation
from .replays.rank_trace import trace_for
from .replays.tracing import module_names
from .replays.vehicles import Vehicle

__all__ = ["Laboratory", "Run", "outcome_of", "short_place"]

_LOOP_REPLAYS = 4
_MAX_STEPS_BACK = 24
_SEARCHES = ("smaller_lr", "clipped")
"""Experiments that can use similar steps if the failed one cannot be computed again."""

Run = Generator[Replay, ReplayResult, "str | None"]
_P = ParamSpec("_P")


def _by_all(
    method: Callable[Concatenate[Laboratory, _P], None],
) -> Callable[Concatenate[Laboratory, _P], None]:
    """Decorate a method so that all ranks run it, if they experiment together."""

    def call(self: Laboratory, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if self.investigation.conductor is not None:
            self.investigation.conductor.note(method.__name__, *args)
        method(self, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


class Laboratory:
    """Runs experiments about one incident, within its budget."""

    def __init__(self, investigation: Investigation, origin: Origin | None, seconds: float) -> None:
        self.investigation = investigation
        self.state = investigation.state
        self.window = investigation.window
        self.origin = origin
        self.tried: list[Experiment] = []
        self.rows: tuple[int, ...] = ()
        self.also: tuple[Link, ...] = ()
        """Births at other lines, which have to be repaired as well."""
        self.rate: Searched | None = None
        self.clip: Searched | None = None
        self.quotient: Quotient | None = None
        self.budget = Budget(seconds)
        self._num_replays = 0
        self._before = StateCopy()
        self._versions: list[Any] = []
        self._is_begun = False

    @property
    def is_loop(self) -> bool:
        """Whether the loop's statements compute it, which is slow: only a few replays are run."""
        return self.window.batches[0].loss_fn is None

    @property
    def has_others(self) -> bool:
        """Whether other ranks would wait in vain if this one experimented."""
        return self.investigation.engine.ranks.has_others and self.investigation.conductor is None

    @property
    def can_replay(self) -> bool:
        if self.has_others or not self.window.batches:
            return False
        return self.investigation.vehicle.can_run(self.window)

    @property
    def has_time(self) -> bool:
        if self.is_loop and self._num_replays >= _LOOP_REPLAYS:
            return False
        return not self.budget.is_over

    def run(
        self, name: str, evidence: Evidence, is_needed: bool = False
    ) -> Generator[Replay, ReplayResult, str]:
        """Run one experiment; returns its outcome. `is_needed`: ignore the limit on replays."""
        runner = runner_of(name)
        start = time.perf_counter()
        outcome: str | None = None
        has_time = not self.is_late if is_needed else self.has_time
        can_replay = self.can_replay or (is_needed and name in _SEARCHES)
        if runner is not None and can_replay and has_time:
            self.begin()
            try:
                outcome = yield from runner(self, evidence)
            finally:
                self.end()
        if outcome is not None:
            self.tried.append(
                Experiment(
                    name=name,
                    changed=question_of(name) + self._and_also(name),
                    outcome=outcome,
                    detail=describe_search(
                        {"smaller_lr": self.rate, "clipped": self.clip}.get(name)
                    ),
                    duration_ms=round(1000 * (time.perf_counter() - start), 3),
                )
            )
        return outcome or "not_run"

    @staticmethod
    def outcome(found: Searched | None) -> str | None:
        """The outcome of a search."""
        if found is None:
            return None
        return "finite" if found.passed is not None else "nonfinite"

    def _and_also(self, name: str) -> str:
        if name != "patched_operator" or not self.also:
            return ""
        return ", and " + ", ".join(short_place(link) for link in self.also)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the training after the replays in this block."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    @_by_all
    def begin(self) -> None:
        """Save the state of the training for `end`."""
        self._rng = RngState.now()
        self.state.clear_grads()
        self._before.take(self.state, self.window.rng)
        self._versions = self._versions_now()
        self._is_begun = True

    def _versions_now(self) -> list[Any]:
        """Preserve version counters: a loop without a loader may still need a graph over the current weights."""
        if not self.window.is_loaderless:
            return []
        weights = [p for _, p in self.state.parameters() if not p.is_inference()]
        return [_unsafe_preserve_version_counter(p) for p in weights]

    @_by_all
    def end(self) -> None:
        """Restore the state that `begin` saved."""
        self._restore()

    def _restore(self) -> None:
        self.state.clear_grads()
        self._before.restore()
        for version in self._versions:
            version.__exit__()
        self.state.buffers.copy()  # replays from the snapshot have changed the copies too
        self._rng.restore()
        self._is_begun = False

    def restore_if_begun(self) -> None:
        """Restore the state if `end` was not called, because the experiment was interrupted."""
        if self._is_begun:
            self._restore()

    @_by_all
    def to_snapshot(self) -> None:
        """Restore the last snapshot."""
        self.state.snapshot.restore()

    @_by_all
    def next_step(self, window: Window, is_redrawn: bool = False) -> None:
        """Prepare a step of a replay from the snapshot: no gradients, and its own random numbers unless `is_redrawn`."""
        self.state.clear_grads()
        if window.rng is not None and not is_redrawn:
            window.rng.restore()

    @_by_all
    def settle(self) -> None:
        """Finish a step of a replay from the snapshot: the next one starts with its buffers."""
        self.state.buffers.copy()

    def once(
        self,
        contexts: Iterable[AbstractContextManager[Any]] = (),
        *,
        batch: Callable[[Any], Any] | None = None,
        is_applied: bool | None = None,
        is_unscaled: bool = False,
        window: Window | None = None,
    ) -> Run:
        """Replay this window; "finite", "nonfinite", or None if it did not complete."""
        window = window or self.window
        if batch is not None:
            window = window.with_values(batch)
        applied = self.needs_step if is_applied is None else is_applied
        self._num_replays += 1
        self.start_of(window)
        result = yield Replay(
            window=window,
            contexts=list(contexts),
            is_applied=applied,
            is_unscaled=is_unscaled,
        )
        return outcome_of(result)

    def traced(
        self,
        contexts: Iterable[AbstractContextManager[Any]] = (),
        window: Window | None = None,
        change: Change | None = None,
    ) -> Generator[Replay, ReplayResult, ReplayResult]:
        """Replay this window under the trace."""
        window = window or self.window
        sources = [
            SourceRef("batch", n, t) for b in window.batches for n, t in named_tensors(b.value)
        ]
        kind = trace_for(self.investigation.engine.ranks)
        trace = kind([*sources, *self.state.sources()], module_names(self.state.roots))
        self._num_replays += 1
        self.start_of(window)
        return (
            yield Replay(
                window=window, contexts=list(contexts), trace=trace,
                is_applied=self.needs_step, change=change,
            )
        )  # fmt: skip

    def redrawn(
        self, numbers: RngState
    ) -> Generator[Replay, ReplayResult, tuple[str | None, RngState]]:
        """Replay this window with other random numbers; also returns the random state after it."""
        window = self.window.with_batches([b.again() for b in self.window.batches])
        window.rng = numbers
        for batch in window.batches:
            batch.rng = None  # each batch continues with the numbers after the previous one
        self.begin()
        try:
            outcome = yield from self.once(window=window)
            return outcome, RngState.now()
        finally:
            self.end()

    @_by_all
    def start_of(self, window: Window) -> None:
        """Restore gradients, buffers and random numbers to the start of this window."""
        self.state.clear_grads()
        self.state.buffers.restore()
        if window.rng is not None:
            window.rng.restore()

    @property
    def needs_step(self) -> bool:
        """Whether the failure occurs only after the optimizer has stepped."""
        birth = self.origin.birth if self.origin is not None else None
        is_late = birth is not None and birth.direction == "optimizer"
        return is_late or self.window.is_moved

    @property
    def had_no_gradient(self) -> bool:
        """Whether the failed backward received only zeros, so that no change can help."""
        birth = self.origin.birth if self.origin is not None else None
        if birth is None or birth.direction != "backward" or not birth.inputs:
            return False
        given = birth.inputs[0].stats
        return given is not None and given.num_zero == given.num_elements

    def trial_steps(self) -> tuple[Vehicle, list[Window]]:
        """The steps to try a setting on, with their vehicle: those since the snapshot and this one, as far as they
        can be computed again, else similar steps."""
        investigation = self.investigation
        is_shared = self.has_others or investigation.engine.ranks.is_apart
        is_exact = not is_shared and investigation.vehicle.can_repeat(self.window)
        if self.window.manual_update or not self.state.snapshot.is_taken or not is_exact:
            return investigation.vehicle, []  # the other steps involve other ranks
        log = [w for w in investigation.engine.log if w is not self.window and not w.is_loaderless]
        log = log[-_MAX_STEPS_BACK:]
        is_shown = investigation.traced is not None and investigation.traced.failure is not None
        is_shown = is_shown and not investigation.is_on_another_batch
        if is_shown and investigation.vehicle.can_run(self.window):
            return investigation.vehicle, [
                *(w for w in log if investigation.vehicle.can_run(w)),
                self.window,
            ]
        return investigation.trial_vehicle(), [self.window]

    @property
    def is_late(self) -> bool:
        return self.budget.is_over

    def replay_from_snapshot(
        self,
        contexts: Callable[[], list[AbstractContextManager[Any]]],
        is_unscaled: bool = False,
        without: int | None = None,
    ) -> Run:
        """Replay all steps since the last snapshot (but `without`), then this one, each with the change."""
        log = [
            w for w in self.investigation.engine.log if w is not self.window and w.step != without
        ]
        is_too_long = self.is_loop and len(log) > _MAX_STEPS_BACK
        is_own = bool(self.window.manual_update)  # only the script can apply its steps
        is_own |= self.investigation.engine.ranks.is_apart  # one rank cannot repeat common steps
        if not self.state.snapshot.is_taken or not log or is_too_long or is_own:
            return None
        self.to_snapshot()
        self._num_replays += 1
        for window in [*log, self.window]:
            if self.budget.is_over:
                return None
            self.next_step(window)
            result = yield Replay(
                window=window,
                contexts=contexts(),
                is_applied=True,
                is_unscaled=is_unscaled,
            )
            if result.failure is not None or not result.is_complete:
                return outcome_of(result)
            self.settle()
        return "finite"

    def bisect(self) -> Generator[Replay, ReplayResult, tuple[int, ...]]:
        """Find the rows of the batch that fail on their own at the same line; () if rows do not matter."""
        if self.is_loop or not self.can_replay or len(self.window.batches) != 1:
            return ()
        total = num_rows(self.window.batches[0].value)
        if total is None:
            return ()
        self.begin()
        try:
            suspects = list(range(total))
            while len(suspects) > 1 and not self.budget.is_over:
                half = len(suspects) // 2
                for part in (suspects[:half], suspects[half:]):
                    if (yield from self._fails_alike(part, total)):
                        suspects = part
                        break
                else:
                    break
            return tuple(suspects) if len(suspects) < total else ()
        finally:
            self.end()

    def _fails_alike(self, rows: list[int], total: int) -> Generator[Replay, ReplayResult, bool]:
        """Whether these rows alone fail at the same place; repeated to the full size if too few rows do not run."""
        repeated = [rows[i % len(rows)] for i in range(total)]
        for chosen in (rows, repeated):
            result = yield from self._with_rows(chosen, total)
            if result.failure is not None or result.is_complete:
                break
        found, mine = result.origin, self.origin
        if found is None or mine is None:
            return False
        if mine.birth is None or found.birth is None:
            return mine.birth is found.birth
        return (found.birth.op, found.birth.place.user) == (mine.birth.op, mine.birth.place.user)

    def _with_rows(
        self, rows: list[int], total: int
    ) -> Generator[Replay, ReplayResult, ReplayResult]:
        cut = self.window.with_values(functools.partial(take_rows, rows=rows, total=total))
        return (yield from self.traced(window=cut))


def short_place(link: Link) -> str:
    """An operator and its line, in short."""
    return f"{link.op} at {os.path.basename(link.file or '?')}:{link.line}"


def outcome_of(result: ReplayResult) -> str | None:
    if result.failure is not None:
        return "nonfinite"
    return "finite" if result.is_complete else None
