"""From a symptom to an incident, as a coroutine.

It yields the passes it wants (this window again, traced; the windows since the snapshot, applied)
and is sent what each pass showed. Who runs a pass, `guard.step`'s closure or the user's own loop, is
not its business. Whatever happens in between, it leaves the training as if the step had not been.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import StayfiniteError
from ..locate.modules import name_modules
from ..locate.slice import Origin, to_location
from ..locate.trace import OpTrace, SourceRef
from ..observe.batches import named_tensors
from ..observe.probes import describe
from ..observe.rng import RngState
from ..observe.witness import witness
from ..records import Action, Event, Incident, Location
from ..recover.snapshot import Snapshot
from .about import environment, new_incident_id, now
from .body import Scene, run_body
from .bodypass import by_body
from .core import Core
from .diagnosis import diagnose, diagnose_plain
from .draws import move_on
from .freetravel import WENT_BACK, give_up, go_back, travel_free
from .keeping import Aside, Before
from .ranks import RankFailure, unwrapped
from .recovery import DEEP
from .slots import modes_slot
from .spikes import spike_incident
from .state import TrainState
from .together import PARTED_NOTE, SUM_NOTE, RankTrace, by_rules, on_rank, together
from .tracing import eager_stance, spoiling_step, symptom_origin
from .window import Failure, Pass, PassResult, Window

__all__ = ["Investigation", "Verdict"]

Passes = Generator[Pass, PassResult, "Verdict"]

_UNLUCKY = (
    "the step was not applied: parameters, optimizer state, buffers, scheduler and scaler are as "
    "before it; the random numbers are left behind, since two steps failed on them and with others "
    "this one is finite"
)


class Verdict:
    """How an investigation ended."""

    def __init__(
        self,
        incident: Incident | None,
        redo: list[Window] | None = None,
        window: Window | None = None,
        is_unlucky: bool = False,
    ) -> None:
        self.incident = incident
        """None: it was no incident (the GradScaler's own business)."""
        self.window = window
        """The window that went wrong and is not applied."""
        self.redo = redo or []
        """Windows that ran on corrupt state and must be run again."""
        self.is_unlucky = is_unlucky
        """Its random numbers are to blame, and the generators stand behind them already."""


class Investigation:
    """Finds out about one failure of one window."""

    def __init__(self, core: Core, window: Window, failure: Failure) -> None:
        self.core = core
        self.state = core.state
        self.window = window
        self.failure = failure
        self.traced: PassResult | None = None
        self.trace: OpTrace | None = None
        self.method = "replay"
        self.leader = failure.rank if isinstance(failure, RankFailure) else core.ranks.rank
        """The rank where it began, as far as is known; its incident is everybody's."""
        self.num_given_up = 0
        """Steps of a loop without a loader that a return to the snapshot undid."""
        self.is_received = False
        """Every rank had its bad values from the others."""
        self._known: Incident | None = None
        """The incident before its diagnosis."""
        self.scene: Scene | None = None
        """Whose statements showed the failure again, where the loop cannot be sent back."""
        self.rng_after = window.rng.now_too() if window.rng is not None else RngState.now()
        """Where the generators stand behind the failed step."""

    def run(self) -> Passes:
        """The whole investigation; with several ranks, the same passes on each."""
        if self.core.ranks.is_on:
            return together(self, self._run())
        return self._unharmed(self._run())

    def _unharmed(self, passes: Passes) -> Passes:
        """An error of ours is no reason for the training to end, nor to end in another mode."""
        modes, put_modes = modes_slot(self.state.roots.values())
        found, window = modes(), self.window
        try:
            return (yield from passes)
        except StayfiniteError:
            raise
        except Exception as e:
            if OpTrace.is_strict:
                raise
            return self._broke_off(e, window)
        finally:
            put_modes(found)

    def _broke_off(self, error: Exception, window: Window) -> Verdict:
        """What is known, and a state that is whole."""
        self.window = window
        if self.method == "time_travel" and self.state.snapshot.is_taken:
            self.num_given_up = go_back(self)  # in the middle of a journey there is no other
        else:
            self._rewind()
        note = f"the investigation itself failed, which is a bug: {type(error).__name__}: {error}"
        location = Location(is_reproduced=False, method="none", note=note)
        if self._known is not None:
            location = replace(self._known.location, note=note)
        incident = self._incident(self.failure, None, location, None)
        if self._known is not None:
            incident = replace(self._known, location=location, action=incident.action)
        return Verdict(incident, [], window)

    def _run(self) -> Passes:
        if self.failure.symptom == "spike":
            if not self.window.num_applied:
                self._rewind()
            return Verdict(spike_incident(self.core, self.window, self.failure), [], self.window)
        if self.failure.symptom in DEEP:
            return (yield from self._run_deep())
        if self.failure.symptom == "learning_rate" and self.is_free:
            self._rewind()
            location = Location(
                method="none", note="the rate speaks for itself: nothing was traced"
            )
            return (yield from self.finish(self.failure, None, location, []))
        is_scaler_skip = self.failure.symptom == "scaler_skip"
        with_step = self.window.is_moved or self.failure.symptom == "learning_rate"
        after = Aside.take(self.state)
        before = Before()
        if self.window.is_moved:
            yield from self._rebuild()
        if with_step:
            before.take(self.state, self.window)
        self._rewind()
        if not self.window.is_lost and self._is_state_bad():
            return (yield from self._travel(self.failure))
        rerun = self._rerun()
        leader = self.core.ranks.first_where(rerun is not None)
        if leader is not None:
            self.method, self.leader = "rerun", leader
            rerun = rerun or PassResult(failure=self.failure)
            self.traced = rerun
            self._rewind()
            location = self.locate(rerun)
            return (yield from self.finish(self.failure, rerun.origin, location, []))
        self._rewind()
        result = yield self.trace_pass(is_unscaled=is_scaler_skip, with_step=with_step)
        self.traced = result
        if with_step:
            before.restore()
        if is_scaler_skip and result.failure is None:
            after.put_back()
            incident = self._scale_incident()
            if incident is not None and self.core.settings.diagnose:
                incident = diagnose_plain(self, incident, unscaled="finite")
            return Verdict(incident, [], self.window)
        failure = result.failure or self.failure
        if self.core.ranks.broadcast_from(self.leader, self._is_older(result)):
            return (yield from self._travel(failure))
        self._rewind()
        location = self.locate(result)
        return (yield from self.finish(failure, result.origin, location, []))

    # -- the ordinary case: this window again -------------------------------------------------

    def trace_pass(self, is_unscaled: bool = False, with_step: bool = False) -> Pass:
        kind = RankTrace if self.core.ranks.has_others else OpTrace
        trace = kind(
            [*self._batch_sources(), *self.state.sources()], name_modules(self.state.roots)
        )
        self.trace = trace
        contexts: list[Any] = [eager_stance()]
        return Pass(
            window=self.window,
            mode="trace",
            trace=trace,
            contexts=contexts,
            is_unscaled=is_unscaled,
            is_applied=with_step,
        )

    def _batch_sources(self) -> Iterator[SourceRef]:
        for batch in self.window.batches:
            for name, t in named_tensors(batch.value):
                yield SourceRef("batch", name, t)

    def _rewind(self) -> None:
        """Everything but parameters and moments back to the start of the window."""
        self.state.clear_grads()
        self.state.restore_buffers()
        if self.window.small_state is not None:
            self.window.small_state.restore()
        if self.window.rng is not None:
            self.window.rng.restore()

    def locate(self, result: PassResult) -> Location:
        if result.origin is not None:
            return to_location(result.origin, self.method)
        if result.failure is None and self.is_free:
            return Location(
                is_reproduced=False,
                method="none",
                note="this loop takes no batches from a loader, so the step could not be run "
                "again; the model's own output on the same input was finite, and so was the next "
                "step. Use `for batch in guard(loader)` or `guard.step` to have it located",
            )
        if result.failure is None and result.is_complete:
            return Location(
                is_reproduced=False,
                method="none",
                note="the same step, run again from the same state, batch and random numbers, "
                "was finite: the computation is not deterministic, or the hardware failed",
            )
        return Location(
            is_reproduced=result.failure is not None,
            method="none",
            note="the loop ended before the step could be run again, so the origin was not traced",
        )

    def _rerun(self) -> PassResult | None:
        """The loop cannot be sent back, but what it computed can be computed again."""
        has_loader = any(b.items for b in self.window.batches)
        if has_loader and not self.window.is_lost:
            return None
        for scene in self.window.scenes[:8]:
            self._rewind()
            found = self._rerun_body(scene)
            if found is not None:
                self.scene = scene
                return found
        self._rewind()
        return self._rerun_model() if self.window.root_call is not None else None

    def quiet_trace(self) -> OpTrace:
        """For what this rank computes again by itself."""
        trace = self.trace_pass().trace
        assert trace is not None
        if isinstance(trace, RankTrace):
            trace.is_quiet = True
        return trace

    def spoiling_step(self, step: Callable[[], Any]) -> Origin | None:
        """Where in this optimizer step the state goes bad."""
        return spoiling_step(self.quiet_trace(), self.state, step)

    def _rerun_body(self, scene: Scene) -> PassResult | None:
        trace = self.quiet_trace()
        with eager_stance(), torch.enable_grad(), trace:
            made = run_body(scene, self.window.batches[-1])
            origin = symptom_origin(trace, made)
            if origin is None and self.failure.symptom == "gradient" and made:
                moved = [p for _, p in self.state.parameters() if p.requires_grad]
                with contextlib.suppress(RuntimeError):
                    grads = torch.autograd.grad(made[-1], moved, allow_unused=True)
                    origin = symptom_origin(trace, [g for g in grads if g is not None])
        return PassResult(failure=self.failure, origin=origin) if origin is not None else None

    def _rerun_model(self) -> PassResult | None:
        module, args, kwargs, rng = self.window.root_call
        trace = self.quiet_trace()
        given = [*named_tensors(args, "input"), *named_tensors(kwargs, "input")]
        for name, t in given:
            trace.add_source(SourceRef("batch", name, t))
        torch.default_generator.set_state(rng)
        origin = None
        with contextlib.suppress(Exception), eager_stance(), torch.enable_grad():
            with trace:
                output = unwrapped(module)(*args, **kwargs)
            origin = symptom_origin(trace, [t for _, t in named_tensors(output)])
        return PassResult(failure=self.failure, origin=origin) if origin is not None else None

    def _rebuild(self) -> Generator[Pass, PassResult, None]:
        """One optimizer has moved, another has failed: back to before this window."""
        if not self.state.snapshot.is_taken or self.core.ranks.has_parted:
            return
        self.state.clear_grads()
        self.state.snapshot.restore()
        for window in self.core.log:
            if window.rng is not None:
                window.rng.restore()
            yield Pass(window=window, mode="advance", is_applied=True)
        self.state.shadow_buffers()

    # -- time travel: the state itself is corrupt ----------------------------------------------

    @property
    def is_free(self) -> bool:
        """No loader can hand the batches out again."""
        return not any(b.items for b in self.window.batches)

    def _is_state_bad(self) -> bool:
        """Whether the step began on state that an earlier one had spoiled: then nothing it shows counts."""
        if self.core.ranks.has_parted:
            return False
        return self.core.ranks.any(bool(self.state.bad_state()))

    def _is_older(self, result: PassResult) -> bool:
        """Whether this window began with state that an earlier step had spoiled."""
        origin = result.origin
        source = origin.source if origin is not None and origin.birth is None else None
        return source is not None and self._came_later(source)

    def _came_later(self, source: SourceRef) -> bool:
        """Whether a parameter, buffer or moment went bad during this run."""
        return (
            source.kind != "batch"
            and f"{source.kind} {source.name}" not in self.state.initially_bad
        )

    def _run_deep(self) -> Passes:
        return (yield from self._travel(self.failure))

    def _travel(self, failure: Failure) -> Passes:
        """Back to the last snapshot, forward step by step, until the step that did it."""
        core, state = self.core, self.state
        if core.ranks.has_parted:
            location = Location(is_reproduced=False, method="none", note=PARTED_NOTE)
            return (yield from self.finish(failure, None, location, []))
        if self.is_free:
            return (yield from travel_free(self, failure))
        is_mid_window = self.failure.symptom not in DEEP
        windows = [*core.log, *([self.window] if is_mid_window else [])]
        if not state.snapshot.is_taken or not windows:
            return (yield from self.without_snapshot(failure))
        if self.window.is_lost:
            return (yield from give_up(self, failure, len(windows)))
        self.method = "time_travel"
        final = self.window
        state.clear_grads()
        state.snapshot.restore()
        before = Before()
        for at, window in enumerate(windows):
            self.window = window
            before.take(state, window)
            result = yield Pass(window=window, mode="advance", is_applied=True)
            bad = state.bad_state()
            first = core.ranks.first_where(bool(bad))
            if first is None and result.failure is None:
                continue
            self.leader = first if first is not None else self.leader
            before.restore()
            traced = yield self.trace_pass(with_step=True)
            origin = traced.origin or self._origin_in_state(bad)
            before.restore()
            state.shadow_buffers()  # experiments begin here
            self.traced = traced
            state.clear_grads()
            kind, name = (bad[0][0], bad[0][1]) if bad else (failure.symptom, failure.name)
            found = traced.failure or Failure(kind, window.step, name=name)
            location = self.locate(replace_origin(traced, origin))
            core.log[:] = windows[:at]
            redo = list(windows[at + 1 :])
            return (yield from self.finish(found, origin, location, redo, noticed=final.step))
        return (yield from self._vanished(failure, windows))

    def _origin_in_state(self, bad: list[tuple[str, str, Tensor]]) -> Origin | None:
        if not bad:
            return None
        kind, name, tensor = bad[0]
        return Origin(None, SourceRef(kind, name, tensor), ())

    def _vanished(self, failure: Failure, windows: list[Window]) -> Passes:
        """All the steps since the snapshot were run again and stayed finite."""
        core = self.core
        core.log[:] = windows
        location = Location(
            is_reproduced=False,
            method="none",
            note=f"the {len(windows)} steps since the last snapshot, run again, stayed finite: "
            "something outside the training step wrote to the state, or the hardware failed",
        )
        return (yield from self.finish(failure, None, location, []))

    def without_snapshot(self, failure: Failure) -> Passes:
        origin = self.traced.origin if self.traced else None
        self._rewind()
        location = self.locate(self.traced) if self.traced else Location()
        location = replace(
            location,
            note="an earlier step corrupted the state; there was no snapshot to go back to",
        )
        return (yield from self.finish(failure, origin, location, []))

    # -- the incident --------------------------------------------------------------------------

    def finish(
        self,
        failure: Failure,
        origin: Origin | None,
        location: Location,
        redo: list[Window],
        noticed: int | None = None,
    ) -> Passes:
        core = self.core
        if self.is_received:
            location = replace(location, note=SUM_NOTE)
        told = [describe(self.traced.probes)] if self.traced is not None else []
        if self.trace is not None and self.trace.error:
            told.append(f"a part of the trace failed, which is a bug: {self.trace.error}")
        for text in filter(None, told):
            location = replace(location, note=f"{location.note}; {text}".removeprefix("; "))
        incident = self._known = self._incident(failure, origin, location, noticed)
        if core.ranks.has_others:
            if core.settings.diagnose and self.leader == core.ranks.rank:
                incident = by_rules(diagnose(self, incident, origin), incident)
        elif core.settings.diagnose and self.scene is not None:
            incident = by_body(core, self.scene, self.window, diagnose(self, incident, origin))
            self._rewind()
        elif core.settings.diagnose:
            incident = yield from diagnose(self, incident, origin)
        if self.is_free:
            # What this loop learns from is drawn by its own statements: the same numbers would bring
            # the same step once more, and for ever.
            self.rng_after.restore()
            return Verdict(incident, redo, self.window)
        is_unlucky = self.method == "replay" and (yield from move_on(self, origin))
        if is_unlucky:
            incident = replace(incident, action=replace(incident.action, detail=_UNLUCKY))
        return Verdict(incident, redo, self.window, is_unlucky)

    def _incident(
        self, failure: Failure, origin: Origin | None, location: Location, noticed: int | None
    ) -> Incident:
        core = self.core
        event = Event(
            step=failure.step,
            epoch=self.window.epoch,
            phase=self._phase(failure, origin),
            symptom=failure.symptom if failure.symptom != "scaler_skip" else "gradient",
            name=failure.name,
            value=failure.value,
            noticed_at_step=noticed,
            loss=_last_loss(self.window),
            grad_norm=_scalar(self.window.norm),
            lr=self.state.lrs(),
            scale=self.state.scale(),
            rank=self.leader,
        )
        event = on_rank(event) if core.ranks.has_others else event
        return Incident(
            id=new_incident_id(event.step),
            event=event,
            location=location,
            history=core.records(),
            environment=environment(),
            created=now(),
            action=self._action(),
        )

    def _action(self) -> Action:
        if self.core.ranks.has_parted:
            return Action(kind="none", detail="reported by this rank alone; no state was changed")
        if self.num_given_up:
            return Action(kind="rolled_back", detail=WENT_BACK.format(self.num_given_up))
        kept = "scheduler and scaler" if self.is_free else "scheduler, scaler and random state"
        if self.is_free and self.state.is_scaled:
            kept = "and scheduler"  # such a loop moves its scaler when we are through
        return Action(
            kind="skipped",
            detail=f"the step was not applied: parameters, optimizer state, buffers, {kept} are as "
            "before it",
        )

    def _phase(self, failure: Failure, origin: Origin | None) -> str:
        if origin is None:
            return {"gradient": "backward", "parameter": "optimizer", "optimizer_state": "optimizer",
                    "learning_rate": "optimizer", "buffer": "forward"}.get(failure.symptom, "loss")  # fmt: skip
        birth = origin.birth
        if birth is not None:
            if birth.direction in ("backward", "optimizer"):
                return birth.direction
            return "forward" if birth.module is not None else "loss"
        source = origin.source
        if source is None:
            consumer = origin.consumer
            return "forward" if consumer is not None and consumer.module is not None else "loss"
        if source.kind == "batch":
            return "data"
        if f"{source.kind} {source.name}" in self.state.initially_bad:
            return "checkpoint" if self._was_restored(source) else "parameter"
        return "optimizer" if source.kind != "buffer" else "forward"

    def _was_restored(self, source: SourceRef) -> bool:
        targets: list[Any] = list(self.state.optimizers)
        if source.kind != "optimizer_state":
            targets = [m for root in self.state.roots.values() for m in root.modules()]
        return witness.restore_of(*targets) is not None

    def _scale_incident(self) -> Incident | None:
        """An overflow that vanishes without the scale: the scaler's business, unless it collapses."""
        scale = self.state.scale() or 1.0
        if not self.core.scale_watch.note_skip(scale):
            self.core.note_scaler_skip(self.window)
            return None
        self.core.scale_watch.note_applied()
        event = Event(
            step=self.window.step,
            epoch=self.window.epoch,
            phase="backward",
            kind="scale_collapse",
            symptom="gradient",
            loss=_last_loss(self.window),
            lr=self.state.lrs(),
            scale=scale,
            message="the GradScaler keeps skipping; without its scale the gradients are finite",
        )
        return Incident(
            id=new_incident_id(event.step),
            event=event,
            location=Location(method="replay", note="gradients are finite at a loss scale of 1"),
            history=self.core.records(),
            environment=environment(),
            created=now(),
            action=Action(kind="skipped", detail="the GradScaler skipped the step itself"),
        )


def replace_origin(result: PassResult, origin: Origin | None) -> PassResult:
    return replace(result, origin=origin)


def small_state(state: TrainState) -> Snapshot:
    """Scheduler, scaler and learning rates, to be put back after a failed step."""
    snapshot = Snapshot()
    snapshot.take(0, [], state.small_slots(), [])
    return snapshot


def _last_loss(window: Window) -> float | None:
    for _step, loss in [*window.losses, *window.suspects]:
        value = _scalar(loss)
        if value is not None and value - value != 0:
            return value
    return _scalar(window.losses[-1][1]) if window.losses else window.loss


def _scalar(value: Tensor | None) -> float | None:
    if value is None or value.numel() != 1 or value.is_complex():
        return None
    return float(value.detach())
