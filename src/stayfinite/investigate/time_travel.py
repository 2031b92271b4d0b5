"""Back to the step that spoiled the state, in a loop that takes no batches from a loader.

The statements of the loop's body are run again from the last snapshot on, for as long as they give
the losses that the loop saw, bit for bit: then what they do is what the loop did, and the optimizer
step that spoils the state is the one. Where they do not, the loop's own next turns go the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..records import Location
from .body import Scene, run_body
from .keeping import Before
from .recovery import DEEP
from .window import Failure, Pass, PassResult, Window

if TYPE_CHECKING:
    from .investigation import Investigation, Passes

__all__ = ["WENT_BACK", "give_up", "go_back", "travel_free"]

WENT_BACK = (
    "parameters, optimizer state and buffers went back to the last snapshot, {} steps ago; what was "
    "learned since then is lost, because those steps cannot be run again"
)

_OVER = (
    "one of the last steps spoiled the state; the loop was over, or cannot be sent back, so the "
    "step could not be run again"
)

_NOT_TRIED = (
    "an earlier step spoiled the state, and this loop takes no batches from a loader with which that "
    "step could be run again; use `for batch in guard(loader)` or `guard.step` to have it located"
)

_NOT_AGAIN = f"{_NOT_TRIED}. The loop's next turns, from the last snapshot on, stayed finite"


def travel_free(about: Investigation, failure: Failure) -> Passes:
    """From the snapshot forward to the step that did it."""
    core, state = about.core, about.state
    if not state.snapshot.is_taken:
        return (yield from about.without_snapshot(failure))
    noticed = about.window
    if noticed.is_lost:
        return (yield from give_up(about, failure, len(core.log)))
    windows = [*core.log, *([noticed] if failure.symptom not in DEEP else [])]
    about.method = "time_travel"
    for scene in noticed.scenes[:4]:
        _go_back(about)
        found = _by_body(about, scene, windows)
        if found is not None:
            return (yield from _told(about, found, noticed))
    if core.policy.name == "raise":
        return (yield from give_up(about, failure, len(windows)))
    _go_back(about)
    about.num_given_up = len(windows)
    core.log.clear()
    note = _NOT_TRIED
    for window in windows:
        about.window = window
        trace = about.quiet_trace()
        result = yield Pass(window=window, mode="advance", is_applied=True, step_trace=trace)
        if result.failure is not None:
            return (yield from _told(about, result, noticed))
        if not result.is_complete:
            break
        core.log.append(window)
        note = _NOT_AGAIN
    about.window = noticed
    location = Location(is_reproduced=False, method="none", note=note)
    return (yield from about.finish(failure, None, location, []))


def give_up(about: Investigation, failure: Failure, num_steps: int) -> Passes:
    """Nothing can be run again: back to the last snapshot, and say so."""
    go_back(about)
    about.num_given_up = num_steps
    location = Location(is_reproduced=False, method="none", note=_OVER)
    return (yield from about.finish(failure, None, location, []))


def _told(about: Investigation, result: PassResult, noticed: Window) -> Passes:
    assert result.failure is not None
    about.traced = result
    location = about.locate(result)
    return (
        yield from about.finish(result.failure, result.origin, location, [], noticed=noticed.step)
    )


def go_back(about: Investigation) -> int:
    """To the last snapshot for good; how many steps are lost by it."""
    lost = len(about.core.log)
    _go_back(about)
    about.core.log.clear()
    return lost


def _go_back(about: Investigation) -> None:
    about.state.clear_grads()
    about.state.snapshot.restore()
    about.state.shadow_buffers()


def _by_body(about: Investigation, scene: Scene, windows: list[Window]) -> PassResult | None:
    """The first step that spoils the state; None where the body does not give what was seen."""
    state = about.state
    if len(state.optimizers) != 1 or state.is_scaled:
        return None
    optimizer = state.optimizers[0]
    for at, window in enumerate(windows):
        if window.rng is not None:
            window.rng.restore()
        for group, rate in zip(optimizer.param_groups, window.lrs):
            group["lr"] = rate
        state.clear_grads()
        with torch.enable_grad():
            loss = _same_loss(run_body(scene), window)
            if loss is None or window.norm is not None:
                return None  # not the loop's own turn, or its clipping is not among the statements
            loss.backward()
        before = Before()
        before.take(state, window)
        optimizer.step()
        bad = state.bad_state()
        if not bad:
            continue
        before.restore()
        about.window = window
        origin = about.spoiling_step(optimizer.step)
        before.restore()
        state.clear_grads()
        state.shadow_buffers()
        about.core.log[:] = windows[:at]
        kind, name, _ = bad[0]
        return PassResult(failure=Failure(kind, window.step, name=name), origin=origin)
    return None


def _same_loss(made: list[Tensor], window: Window) -> Tensor | None:
    seen = window.loss
    return next((t for t in reversed(made) if t.requires_grad and float(t.detach()) == seen), None)
