"""The vehicle that replays a step by running statements of the loop."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from ...numerics.health import badness
from ...runtime.engine import Engine
from ...runtime.window import BatchRef, Window, is_same, joined
from ..body.body import Body
from ..body.home import homes_of
from ..body.plan import object_at
from ..body.scene import Scene
from .changed_source import NotRunnable
from .replay import ActiveReplay
from .tracing import symptom_origin
from .vehicles import Vehicle

__all__ = ["BodyVehicle"]


class BodyVehicle(Vehicle):
    """The statements of the loop's body on which the loss depends, on a copy of its variables."""

    def __init__(self, engine: Engine, body: Body, own: Window) -> None:
        super().__init__(engine)
        self.body = body
        self._changed: tuple[Any, Body] | None = None
        self._own = own
        """The window whose values the variables of the body have."""

    @property
    def has_effects(self) -> bool:
        return self.body.has_effects

    def extended(self) -> Vehicle | None:
        body = self.body.extended() or self.body.loosened()
        return None if body is None else BodyVehicle(self.engine, body, self._own)

    @property
    def scene(self) -> Scene | None:
        return self.body.scene

    def scenes(self) -> list[Scene]:
        return self.body.scenes()

    def data(self) -> Iterable[tuple[str, Tensor]]:
        return self.body.given_tensors() if self._own.is_loaderless else ()

    def can_run(self, window: Window) -> bool:
        is_own = is_same(window.batches, self._own.batches)
        return is_own or self._can_bind(window.batches)

    def can_repeat(self, window: Window) -> bool:
        is_gone = window.is_loaderless and window is not self._own and self.body.is_of_one_iteration
        return not (is_gone or self._leaves_out_exchange) and super().can_repeat(window)

    @functools.cached_property
    def _leaves_out_exchange(self) -> bool:
        """Whether the loop itself averages the gradients of the ranks, which the statements alone do not do."""
        ranks = self.engine.ranks
        is_by_hand = ranks.has_others and ranks.can_be_apart and not ranks.wrappers
        return is_by_hand and self.body.is_exchanging

    def _can_bind(self, refs: list[BatchRef]) -> bool:
        bodies = [self.body] if self._stepping is None else [self.body, self._stepping]
        return all(_can_bind(b, refs) for b in bodies)

    @functools.cached_property
    def _stepping(self) -> Body | None:
        """If an exception has ended the iteration: the body up to the step that was not reached."""
        place = self.engine.step_place
        if not self.body.scene.is_over:
            return None
        if place.line is None:  # it was the first
            return self.body.as_far_as(*self._step_to_come, instruction=-1)
        return self.body.as_far_as(place.code, place.line, place.instruction)

    @property
    def _step_to_come(self) -> tuple[CodeType | None, int | None]:
        """The first `optimizer.step()` behind the statement that raised, in the function around it that has one."""
        optimizers = self.engine.state.optimizers
        for scene in self.scenes():
            nodes = [n for home in homes_of(scene) for n in ast.walk(home.node)]
            calls = [n.func for n in nodes if isinstance(n, ast.Call) and n.lineno > scene.line]
            lines = [
                f.lineno for f in calls if isinstance(f, ast.Attribute) and f.attr == "step"
                and any(object_at(f.value, scene) is o for o in optimizers)
            ]  # fmt: skip
            if lines:
                return scene.code, min(lines)
        return None, None

    def _body_with(self, change: Any, is_applied: bool) -> Body:
        """The body with the changed source, if there is a change."""
        own = self._stepping if is_applied and self._stepping is not None else self.body
        if change is None or not change.name:
            return own
        key = (change, own)
        if self._changed is None or self._changed[0] != key:
            body = own.with_source(change.scene)
            if body is None:
                raise NotRunnable("nothing in the changed body can be run again")
            self._changed = (key, body)
        return self._changed[1]

    def _compute(self, active: ActiveReplay) -> None:
        wanted = active.wanted
        body = self._body_with(wanted.change, wanted.is_applied)
        refs = wanted.window.batches
        is_whole = len(refs) > 1 and not self._can_bind(refs)
        if len(refs) > 1 and (is_whole or body.takes_several):
            active.steps = [ref.step for ref in refs]
            refs = [joined(refs)]
        for i, ref in enumerate(refs):
            active.step = ref.step
            if i and ref.rng is not None and not wanted.is_applied:
                ref.rng.restore()
            with self._as_synced(active, ref):
                namespace = self._run(body, ref, is_part=ref is not refs[-1])
            if wanted.is_applied and not wanted.is_current:
                body.run_following(namespace)
            if not active.num_backward:
                self._check_computed(active, body, namespace)
        is_part = wanted.window.is_loaderless and wanted.trace is not None and wanted.change is None
        if is_whole or is_part:
            # Earlier iterations computed batches that the variables no longer hold.
            is_all = active.num_backward == wanted.window.num_backward
            active.result.is_complete = active.result.is_complete and is_all

    def _run(self, body: Body, ref: BatchRef, is_part: bool) -> dict[str, Any]:
        if ref.items and body.can_bind(len(ref.items)):
            return body.run(ref.value, is_part)
        return body.run()

    def _check_computed(self, active: ActiveReplay, body: Body, namespace: dict[str, Any]) -> None:
        """Check the numbers that a loop computed before it stopped without a backward."""
        made = body.made(namespace)
        if not made and active.wanted.window.error is not None and active.wanted.change is not None:
            # The statement raised before there was any loss, and does not with the change.
            given = body.given_anew(namespace)
            active.result.is_complete = bool(given) and not any(map(badness, given))
            return
        for number in made:
            active.check_loss(number)
        if active.is_decided or not made:
            active.result.is_complete = bool(made)
            return
        trace = active.wanted.trace
        moved = [p for _, p in self.engine.state.parameters() if p.requires_grad]
        last = next((t for t in reversed(made) if t.requires_grad), None)
        if trace is None or last is None:
            return
        grads = torch.autograd.grad(last, moved, allow_unused=True)
        bad = [g for g in grads if g is not None and badness(g)]
        active.result.origin = symptom_origin(trace, bad)


def _can_bind(body: Body, refs: list[BatchRef]) -> bool:
    if body.takes_several:
        return body.can_bind(sum(len(b.items) for b in refs))
    return all(b.items and body.can_bind(len(b.items)) for b in refs)
