"""One investigation: what is known of a failure, and the incident that is made of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

from ..locate.slice import Origin, to_location
from ..locate.trace import OpTrace, SourceRef
from ..records import Action, Incident, Location, RankPart
from ..recover.policy import Outlook
from ..runtime.batches import named_tensors
from ..runtime.engine import Engine
from ..runtime.incidents import new_incident
from ..runtime.probes import describe
from ..runtime.ranks.agreement import RankFailure
from ..runtime.rng import RngState
from ..runtime.window import Failure, Replay, ReplayResult, Window
from .body.held import HeldData
from .describe import REBUILT, WENT_BACK, action_kind_of, event_of, not_applied, on_rank, phase_of
from .evidence.own_counts import OwnCounts
from .replays.rank_trace import NOT_COMPUTED_NOTE, SUM_NOTE, RankTrace, trace_for
from .replays.tracing import module_names
from .replays.vehicles import Vehicle

__all__ = ["Investigation", "Replays"]

_ANOTHER_BATCH = (
    "this step's own batch is gone, so it could not be computed again; the batch that the loop holds now fails "
    "on the same weights, and that is what was traced"
)

_OTHER_NUMBERS = (
    "the random numbers of this step could not be drawn again, because not all that draws them can be run "
    "twice; "
)
_SHOWN_BY_OTHERS = "with others the step fails on the same weights, and that is what was traced"
_FROM_HERE_ON = "; from here on, each backward of such a step is looked at"
_NOT_SHOWN = "with others it is finite, so the origin was not traced"

Replays = Generator[Replay, ReplayResult, Any]


class Investigation:
    """The state of the investigation of one failure."""

    def __init__(self, engine: Engine, window: Window, failure: Failure, vehicle: Vehicle) -> None:
        self.engine = engine
        self.state = engine.state
        self.window = window
        self.failure = failure
        self.vehicle = vehicle
        self.traced: ReplayResult | None = None
        self.trace: OpTrace | None = None
        self.method = "replay"
        self.leader = failure.rank if isinstance(failure, RankFailure) else engine.ranks.rank
        """The rank where it began, as far as is known. All ranks keep the incident of this rank."""
        self.num_finite = 0
        """The number of complete replays that were finite."""
        self.counts = OwnCounts(self.state)
        self.num_lost_steps = 0
        """Steps that were undone by restoring the snapshot and cannot be run again."""
        self.num_reapplied = 0
        """Steps that were run again from the snapshot, and are applied."""
        self.ranks: tuple[RankPart, ...] = ()
        """The part of each rank in it, if there are several."""
        self.is_received = False
        """Whether every rank received its bad values from the others."""
        self.trial_vehicle: Callable[[], Vehicle] = lambda: vehicle
        """The vehicle for similar steps, if this step itself cannot be computed again."""
        self.is_on_another_batch = False
        """Whether a similar step was traced, because the batch of this one is gone."""
        self.is_on_other_numbers = False
        """Whether a replay cannot draw the random numbers of the step again."""
        self.names_data = False
        """Whether a trace names the variables that hold what it was given."""
        self.outlook: Outlook | None = None
        """Set if skipping the step cannot help."""
        self.known: Incident | None = None
        """The incident before its diagnosis."""
        self.conductor: Any = None
        """Set on the rank that leads experiments on all ranks (`collective.Conductor`)."""
        self.is_moved = window.is_moved
        """Whether another optimizer has already stepped on this batch."""
        self.rng_before = window.rng
        """The random state before the step."""
        self.rng_after = window.rng.current() if window.rng is not None else RngState.now()
        """The random state after the failed step."""

    def compute(self, wanted: Replay) -> ReplayResult:
        """Run a replay, with its own vehicle or with that of the investigation."""
        vehicle: Vehicle = wanted.vehicle or self.vehicle
        return vehicle.run(wanted)

    def trace_replay(self, is_unscaled: bool = False, with_step: bool = False) -> Replay:
        """A replay of this window under the operator trace."""
        window, ranks = self.window, self.engine.ranks
        sources = [*_batch_sources(window), *self.state.sources()]
        known = {id(s.tensor) for s in sources}
        given = [s for s in self.vehicle.data() if id(s[1]) not in known]
        sources += [SourceRef("batch", name, t) for name, t in given]
        self.trace = trace_for(ranks)(sources, module_names(self.state.roots))
        if self.names_data:
            self.trace.elsewhere = HeldData(self.vehicle.scenes()).find
        if isinstance(self.trace, RankTrace):
            self.trace.is_quiet = ranks.has_diverged
        return Replay(
            window=window,
            trace=self.trace,
            is_unscaled=is_unscaled,
            is_applied=with_step,
        )

    def rewind(self) -> None:
        """Restore everything but parameters and moments to the start of the window."""
        self.state.buffers.restore()
        if self.window.small_state is not None:
            self.window.small_state()
        if self.window.rng is not None:
            self.window.rng.restore()

    def has_drawn_the_same(self) -> bool:
        """Whether the replay just run drew the same random numbers as the failed step."""
        return self.window.rng is None or self.rng_after.is_same(self.rng_after.current())

    def location(self, result: ReplayResult) -> Location:
        if result.origin is not None:
            return to_location(result.origin, self.method)
        if result.failure is None and result.is_complete:
            return Location(
                is_reproduced=False,
                method="none",
                note=f"the same step, replayed {'twice' if self.num_finite > 1 else 'once'} from the same "
                "state, batch and random numbers, was finite",
            )
        if result.failure is None:
            note = "" if self.is_on_other_numbers else self._why_not(result)
            return Location(is_reproduced=False, method="none", note=note)
        return Location(
            is_reproduced=True,
            method="none",
            note="the failure was reproduced, but its origin is outside of the replayed code",
        )

    def _why_not(self, result: ReplayResult) -> str:
        if self.vehicle.why:
            return self.vehicle.why
        num, total = len(result.losses), self.window.num_backward
        if 0 < num < total and not self.vehicle.refused:
            return (
                f"the step adds up {total} backwards, and what the earlier ones were computed from is gone; "
                f"the last {'one' if num == 1 else num}, computed again, "
                f"{'is' if num == 1 else 'are'} finite, so it came from one before, which was not traced"
                f"{_FROM_HERE_ON if self.window.is_added_up else ''}"
            )
        if self.engine.settings.replay == "off":
            return "replays are turned off, so the origin was not traced"
        refused = ", ".join(self.vehicle.refused)
        what = f" (it wanted to: {refused})" if refused else ""
        advice = "use guard.step(loss_fn, batch)"
        if self.engine.settings.replay != "full":
            advice += (
                ", or replay='full' (run --replay full) to run statements with side effects too, in a "
                "sandbox"
            )
        return (
            f"the step could not be replayed without side effects{what}, so the origin was not "
            f"traced; {advice}"
        )

    def began_corrupted(self, result: ReplayResult) -> bool:
        """Whether an earlier step had corrupted the state."""
        origin = result.origin
        source = origin.source if origin is not None and origin.birth is None else None
        return source is not None and (
            source.kind not in ("batch", "variable")
            and f"{source.kind} {source.name}" not in self.state.initially_bad
        )

    @property
    def has_own_batches(self) -> bool:
        """Whether the batches of the step are kept, whatever its variables hold now."""
        return not self.window.is_loaderless and all(b.items for b in self.window.batches)

    def was_corrupted_by_own_update(self, result: ReplayResult) -> bool:
        """Whether the script's own update of the step before has made the state bad; it could not be checked there."""
        return bool(self.window.manual_update) and self.began_corrupted(result)

    def is_state_bad(self) -> bool:
        """Whether any state is not finite before the step, so that a replay of it proves nothing."""
        if self.engine.ranks.has_diverged:
            return False
        return self.engine.ranks.is_so_anywhere(bool(self.state.bad_state()))

    def incident(
        self, failure: Failure, origin: Origin | None, location: Location, noticed: int | None
    ) -> Incident:
        """The incident before its diagnosis."""
        if self.is_received:
            is_known = self.traced is None or self.traced.is_complete
            location = replace(location, note=SUM_NOTE if is_known else NOT_COMPUTED_NOTE)
        notes = [location.note]
        if self.is_on_another_batch:
            notes.append(_ANOTHER_BATCH)
        elif self.is_on_other_numbers:
            end = _SHOWN_BY_OTHERS if origin is not None else _NOT_SHOWN
            notes.append(_OTHER_NUMBERS + end)
        if self.traced is not None:
            notes.append(describe(self.traced.probes))
        if self.trace is not None and self.trace.error:
            notes.append(f"a part of the trace failed, which is a bug: {self.trace.error}")
        location = replace(location, note="; ".join(n for n in notes if n))
        engine, event = (
            self.engine,
            event_of(
                self.engine, self.window, failure, phase_of(self.state, failure, origin), noticed
            ),
        )
        event = replace(event, rank=self.leader)
        event = on_rank(event) if engine.ranks.has_others else event
        made = new_incident(
            event, location=location, action=self.action(), history=engine.records()
        )
        self.known = replace(made, ranks=self.ranks)
        return self.known

    def action(self) -> Action:
        """What was done so far; the policy may change it."""
        if self.engine.ranks.has_left:
            return Action(kind="none", detail="reported by this rank alone; no state was changed")
        if self.num_lost_steps:
            return Action(kind="rolled_back", detail=WENT_BACK.format(self.num_lost_steps))
        if self.num_reapplied:
            steps = f"{self.num_reapplied} step{'s' * (self.num_reapplied != 1)}"
            return Action(kind="rebuilt", detail=REBUILT.format(steps))
        return Action(
            kind=action_kind_of(self.window), detail=not_applied(self.engine, self.window)
        )


def _batch_sources(window: Window) -> Iterator[SourceRef]:
    for batch in window.batches:
        for name, t in named_tensors(batch.value):
            yield SourceRef("batch", name, t)
