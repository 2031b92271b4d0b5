"""Goes back to the last snapshot and replays step by step to find the one that corrupted the state."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

from torch import Tensor

from ..locate.slice import Origin
from ..locate.trace import SourceRef
from ..records import Location
from ..runtime.recovery.carry_out import DEEP
from ..runtime.saved_state import StateCopy
from ..runtime.window import Failure, Replay, ReplayResult, Window
from .investigation import Investigation
from .replays.rank_trace import DIVERGED_NOTE, JOINING_NOTE

__all__ = ["Found", "go_back", "travel"]

_NO_SNAPSHOT = "an earlier step corrupted the state; there was no snapshot to go back to"
_NOT_AGAIN = (
    "an earlier step corrupted the state, and the steps since the last snapshot could not be computed "
    "again, so it was not traced; use guard.step(loss_fn, batch) or `for batch in guard(loader)`"
)


@dataclass
class Found:
    """The result of time travel."""

    failure: Failure
    location: Location
    origin: Origin | None = None
    redo: list[Window] = field(default_factory=list)
    noticed: int | None = None


def travel(
    investigation: Investigation, failure: Failure
) -> Generator[Replay, ReplayResult, Found]:
    """Find the step that corrupted the state. It is skipped, and the steps after it have to be run again."""
    engine, state = investigation.engine, investigation.state
    if engine.ranks.has_diverged:
        return Found(failure, Location(is_reproduced=False, method="none", note=DIVERGED_NOTE))
    if engine.ranks.is_joining():
        return Found(failure, Location(is_reproduced=False, method="none", note=JOINING_NOTE))
    is_mid_window = investigation.failure.symptom not in DEEP
    windows = [*engine.log, *([investigation.window] if is_mid_window else [])]
    if not state.snapshot.is_taken or not windows:
        return _without_snapshot(investigation, failure)
    if not all(investigation.vehicle.can_repeat(w) for w in windows):
        return _given_up(investigation, failure)
    investigation.method = "time_travel"
    final = investigation.window
    state.clear_grads()
    state.snapshot.restore()
    before = StateCopy()
    for at, window in enumerate(windows):
        investigation.window = window
        before.take(state, window.rng)
        result = yield Replay(window=window, is_applied=True)
        bad = state.bad_state()
        first = engine.ranks.first_where(bool(bad))
        if not result.is_complete and result.failure is None and not bad:
            investigation.window = final
            return _given_up(investigation, failure)
        if first is None and result.failure is None:
            continue
        investigation.leader = first if first is not None else investigation.leader
        before.restore()
        found = yield from _trace_window(investigation, window, bad, failure, before)
        engine.log[:] = windows[:at]
        return replace(found, redo=list(windows[at + 1 :]), noticed=final.step)
    return _vanished(investigation, failure, windows)


def _trace_window(
    investigation: Investigation,
    window: Window,
    bad: list[tuple[str, str, Tensor]],
    failure: Failure,
    before: StateCopy,
) -> Generator[Replay, ReplayResult, Found]:
    """Replay the step that corrupts the state under the trace."""
    traced = yield investigation.trace_replay(with_step=True)
    origin = traced.origin or _origin_in_state(bad)
    before.restore()
    investigation.state.buffers.copy()  # experiments begin here
    investigation.traced = traced
    investigation.state.clear_grads()
    kind, name = (bad[0][0], bad[0][1]) if bad else (failure.symptom, failure.name)
    found = traced.failure or Failure(kind, window.step, name=name)
    return Found(found, investigation.location(replace(traced, origin=origin)), origin)


def _origin_in_state(bad: list[tuple[str, str, Tensor]]) -> Origin | None:
    if not bad:
        return None
    kind, name, tensor = bad[0]
    return Origin(None, SourceRef(kind, name, tensor), ())


def _vanished(investigation: Investigation, failure: Failure, windows: list[Window]) -> Found:
    """The result if all steps since the snapshot were run again and stayed finite."""
    investigation.engine.log[:] = windows
    investigation.num_rebuilt = len(windows)
    note = (
        f"the {len(windows)} steps since the last snapshot, run again, stayed finite: "
        "something outside the training step wrote to the state, or the hardware failed"
    )
    return Found(failure, Location(is_reproduced=False, method="none", note=note))


def _without_snapshot(investigation: Investigation, failure: Failure) -> Found:
    traced = investigation.traced
    investigation.rewind()
    location = investigation.location(traced) if traced is not None else Location()
    origin = traced.origin if traced is not None else None
    return Found(failure, replace(location, note=_NO_SNAPSHOT), origin)


def _given_up(investigation: Investigation, failure: Failure) -> Found:
    """Restore the last snapshot, if the steps since then cannot be run again."""
    investigation.num_given_up = max(1, go_back(investigation))
    return Found(failure, Location(is_reproduced=False, method="none", note=_NOT_AGAIN))


def go_back(investigation: Investigation) -> int:
    """Restore the last snapshot permanently; returns how many steps are lost."""
    lost = len(investigation.engine.log)
    investigation.state.clear_grads()
    investigation.state.snapshot.restore()
    investigation.state.buffers.copy()
    investigation.engine.log.clear()
    return lost
