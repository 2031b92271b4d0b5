"""Chooses the vehicle that replays a loop: the safest one that reproduces the failure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

from ...runtime.engine import Engine
from ...runtime.recovery.carry_out import DEEP
from ...runtime.undo import helpers_of
from ...runtime.window import Failure, Replay, ReplayResult, Window
from ..body.body import Body
from ..body.scene import Scene, scenes_of_frame, scenes_of_saved, scenes_of_traceback
from .body_vehicle import BodyVehicle
from .frameworks import framework_step
from .vehicles import ClosureVehicle, FrameworkVehicle, NoVehicle, Vehicle, refusing_vehicle

__all__ = ["choose_vehicle", "trial_vehicle"]

_MAX_FRAMES = 8


def choose_vehicle(
    engine: Engine, window: Window, failure: Failure, frame: FrameType | None
) -> Vehicle:
    """Choose the vehicle for a failed window of a loop; `frame`: the current frame of the step."""
    found = framework_step(frame)
    if found is not None and all(b.items for b in window.batches):
        return FrameworkVehicle(engine, found)
    if window.closure is not None:
        return ClosureVehicle(engine, window.closure, window)
    is_behind = window.num_backward > 1  # other losses followed
    scenes = scenes_of_saved(window.saved_frames) if is_behind else []
    scenes = scenes or _scenes(window, frame)
    if window.error is not None:
        scenes = scenes_of_traceback(window.error.__traceback__)
    elif failure.symptom in DEEP:
        scenes = [_at_step(engine, s) for s in scenes]
    elif window.left_at is not None:
        code, line = window.left_at
        scenes = [replace(s, line=line, column=None) if s.code is code else s for s in scenes]
    bodies = _bodies(engine, window, scenes)
    if engine.settings.replay == "full":
        bodies = itertools.chain(bodies, _bodies(engine, window, scenes, is_full=True))
    first = next(bodies, None)
    return NoVehicle(engine) if first is None else FirstReproducing(engine, first, bodies)


def _scenes(window: Window, frame: FrameType | None) -> list[Scene]:
    has_left_early = window.is_left_by_script and window.num_backward > 0
    return [replace(s, has_left_early=has_left_early) for s in scenes_of_frame(frame)]


def _at_step(engine: Engine, scene: Scene) -> Scene:
    """Move the scene back to the step: a deep check runs later, when the loop asks for its next batch."""
    place = engine.step_place
    if place.code is not scene.code or (line := place.line) is None:
        return scene
    return scene.moved(line, place.instruction)


def trial_vehicle(engine: Engine, window: Window, frame: FrameType | None) -> Vehicle:
    """The vehicle for steps similar to the failed one, if that cannot be computed again.

    Its batch is gone, but the current batch is good enough for trying a setting.
    """
    if window.error is not None or window.manual_update or refusing_vehicle(engine) is not None:
        return NoVehicle(engine)
    found = _bodies(engine, window, _scenes(window, frame), is_loose=True)
    return FirstRunnable(engine, found)


def _bodies(
    engine: Engine,
    window: Window,
    scenes: list[Scene],
    is_full: bool = False,
    is_loose: bool = False,
) -> Iterator[Vehicle]:
    """Yield a vehicle per frame; lazily, because reading the source takes a while."""

    def is_training_object(value: object) -> bool:
        state = engine.state
        if value is torch.autograd.grad:
            return bool(window.manual_update)
        if value in state.optimizers or value in state.schedulers or value in state.scalers:
            return True
        return any(value is h for o in state.optimizers for h in helpers_of(o))

    is_buffer = _put_back(engine)
    for i, scene in enumerate(scenes[:_MAX_FRAMES]):
        body = Body.of(scene, scenes[i + 1 :], is_training_object, is_full, is_buffer, is_loose)
        if body is not None:
            yield BodyVehicle(engine, body, window)


def _put_back(engine: Engine) -> Callable[[object, str], bool]:
    """Which attributes of a module are as they were before each replay.

    Buffers always. If the state itself is bad, the steps since the last snapshot are run from there, and so a forward may
    also write parameters (values that are taken from the first batch).
    """
    buffers, state = engine.state.buffers, engine.state
    if not state.snapshot.is_taken or not state.bad_state():
        return buffers.holds
    parts = {id(m) for root in state.roots.values() for m in root.modules()}

    def is_restored(module: object, key: str) -> bool:
        is_parameter = id(module) in parts and key in getattr(module, "_parameters", ())
        return is_parameter or buffers.holds(module, key)

    return is_restored


class FirstReproducing(Vehicle):
    """Tries several frames, and keeps the first whose replay reproduces the failure."""

    def __init__(self, engine: Engine, first: Vehicle, others: Iterator[Vehicle]) -> None:
        super().__init__(engine)
        self._found = [first]
        self._others = others
        self._chosen: Vehicle | None = None

    def _candidates(self) -> Iterator[Vehicle]:
        yield from self._found
        for other in self._others:
            self._found.append(other)
            yield other

    @property
    def _now(self) -> Vehicle:
        return self._chosen or self._found[0]

    @property
    def has_effects(self) -> bool:
        return self._now.has_effects

    def extended(self) -> Vehicle | None:
        extended = self._now.extended() or next(self._others, None)
        return None if extended is None else FirstReproducing(self.engine, extended, self._others)

    @property
    def scene(self) -> Scene | None:
        return self._now.scene

    def scenes(self) -> list[Scene]:
        return self._now.scenes()

    def data(self) -> Iterable[tuple[str, torch.Tensor]]:
        return self._now.data()

    def can_run(self, window: Window) -> bool:
        if self._chosen is not None:
            return self._chosen.can_run(window)
        return any(c.can_run(window) for c in self._candidates())

    def can_repeat(self, window: Window) -> bool:
        if self._chosen is not None:
            return self._chosen.can_repeat(window)
        return any(c.can_repeat(window) for c in self._candidates())

    def run(self, wanted: Replay) -> ReplayResult:
        if self._chosen is not None:
            return self._chosen.run(wanted)
        rng: Any = wanted.window.rng
        first: ReplayResult | None = None
        for candidate in self._candidates():
            if rng is not None and first is not None:
                rng.restore()
            result = candidate.run(wanted)
            self.refused += [r for r in candidate.refused if r not in self.refused]
            # A replay without the scale asks whether the step is finite, so a finite one is an answer too.
            if result.failure is not None or (wanted.is_unscaled and result.is_complete):
                self._chosen = candidate
                return result
            if first is None or (result.is_complete and not first.is_complete):
                first = result
        assert first is not None
        self._chosen = self._found[0]  # a replay's contexts can be entered only once
        return first


class FirstRunnable(Vehicle):
    """Tries several vehicles, and keeps the first that computes a loss."""

    def __init__(self, engine: Engine, candidates: Iterator[Vehicle]) -> None:
        super().__init__(engine)
        self._candidates = candidates
        self._chosen: Vehicle | None = None

    @property
    def scene(self) -> Scene | None:
        return None if self._chosen is None else self._chosen.scene

    def can_run(self, window: Window) -> bool:
        return self._chosen is None or self._chosen.can_run(window)

    def run(self, wanted: Replay) -> ReplayResult:
        if self._chosen is not None:
            return self._chosen.run(wanted)
        result = ReplayResult(is_complete=False)
        for candidate in self._candidates:
            if not candidate.can_run(wanted.window):
                continue
            result = candidate.run(wanted)
            self._chosen = candidate  # a replay's contexts can be entered only once
            break
        return result
