"""The failing step once more with one thing changed. Nothing of it remains."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..diagnose.evidence import Evidence
from ..diagnose.registry import EXPERIMENTS
from ..locate.modules import name_modules
from ..locate.slice import Origin, to_location
from ..locate.trace import OpTrace, SourceRef
from ..numerics.health import badness
from ..observe.batches import named_tensors
from ..observe.rng import RngState
from ..records import Experiment, Link
from . import changes
from .keeping import Before
from .patching import LimitedGradient, PatchedLine
from .rows import cover_rows, map_tensors, num_rows, take_rows
from .window import BatchRef, Pass, PassResult, Window

if TYPE_CHECKING:
    from .investigation import Investigation

__all__ = ["Laboratory", "short_place"]

_LOOP_PASSES = 4
_LOOP_JOURNEY = 24
_MAX_BIRTHS = 4
_HALF = (torch.float16, torch.bfloat16)

Run = Generator[Pass, PassResult, "str | None"]


class Laboratory:
    """Runs experiments about one incident, within its budget."""

    def __init__(self, about: Investigation, origin: Origin | None, seconds: float) -> None:
        self.about = about
        self.state = about.state
        self.window = about.window
        self.origin = origin
        self.tried: list[Experiment] = []
        self.rows: tuple[int, ...] = ()
        self.also: tuple[Link, ...] = ()
        """Births at other lines that have to be kept finite as well."""
        self._deadline = time.perf_counter() + seconds
        self._num_passes = 0
        self._before = Before()

    @property
    def is_loop(self) -> bool:
        """The user's own loop runs the passes, so there should be few."""
        return self.window.batches[0].loss_fn is None

    @property
    def can_replay(self) -> bool:
        """Without a loader the next pass would be the next batch, not this one again, unless the
        loop's statements run it; and a rank that experiments alone would leave the others waiting."""
        if self.about.core.ranks.has_others or not self.window.batches:
            return False
        return self.about.scene is not None or all(b.items for b in self.window.batches)

    @property
    def has_time(self) -> bool:
        if self.is_loop and self._num_passes >= _LOOP_PASSES:
            return False
        return time.perf_counter() < self._deadline

    def run(self, name: str, evidence: Evidence) -> Generator[Pass, PassResult, str]:
        """One experiment by name; its outcome."""
        runner = _RUNNERS.get(name)
        start = time.perf_counter()
        outcome: str | None = None
        if runner is not None and self.can_replay and self.has_time:
            self._begin()
            try:
                outcome = yield from runner(self, evidence)
            finally:
                self._end()
        if outcome is not None:
            self.tried.append(
                Experiment(
                    name=name,
                    changed=EXPERIMENTS[name] + self._and_also(name),
                    outcome=outcome,
                    duration_ms=round(1000 * (time.perf_counter() - start), 3),
                )
            )
        return outcome or "not_run"

    def _and_also(self, name: str) -> str:
        if name != "patched_operator" or not self.also:
            return ""
        return ", and " + ", ".join(short_place(link) for link in self.also)

    # -- leaving no trace ------------------------------------------------------------------------

    def _begin(self) -> None:
        self._rng = RngState.now()
        self.state.clear_grads()
        self._before.take(self.state, self.window)

    def _end(self) -> None:
        self.state.clear_grads()
        self._before.restore()
        self.state.shadow_buffers()  # a journey has moved the shadows too
        self._rng.restore()

    # -- passes ------------------------------------------------------------------------------------

    def once(
        self,
        contexts: Iterable[AbstractContextManager[Any]] = (),
        *,
        batch: Callable[[Any], Any] | None = None,
        is_applied: bool | None = None,
        is_unscaled: bool = False,
        window: Window | None = None,
    ) -> Run:
        """This window once more; "finite", "nonfinite", or None if it did not run to its end."""
        window = window or self.window
        if batch is not None:
            window = window.with_batches([_with(b, batch(b.value)) for b in window.batches])
        applied = self._needs_step if is_applied is None else is_applied
        self._num_passes += 1
        self._start_of(window)
        result = yield Pass(
            window=window,
            mode="experiment",
            contexts=list(contexts),
            is_applied=applied,
            is_unscaled=is_unscaled,
        )
        return _outcome(result)

    def traced(
        self,
        contexts: Iterable[AbstractContextManager[Any]] = (),
        window: Window | None = None,
    ) -> Generator[Pass, PassResult, PassResult]:
        """This window once more, and where it fails now."""
        window = window or self.window
        sources = [
            SourceRef("batch", n, t) for b in window.batches for n, t in named_tensors(b.value)
        ]
        trace = OpTrace([*sources, *self.state.sources()], name_modules(self.state.roots))
        self._num_passes += 1
        self._start_of(window)
        return (
            yield Pass(
                window=window, mode="experiment", contexts=list(contexts), trace=trace,
                is_applied=self._needs_step,
            )
        )  # fmt: skip

    def redrawn(
        self, numbers: RngState
    ) -> Generator[Pass, PassResult, tuple[str | None, RngState]]:
        """This window once more with other random numbers; and where the generators stand then."""
        window = self.window.with_batches([b.again() for b in self.window.batches])
        window.rng = numbers
        for batch in window.batches:
            batch.rng = None  # the numbers flow on from batch to batch
        self._begin()
        try:
            outcome = yield from self.once(window=window)
            return outcome, RngState.now()
        finally:
            self._end()

    def _start_of(self, window: Window) -> None:
        self.state.clear_grads()
        self.state.restore_buffers()
        if window.rng is not None:
            window.rng.restore()

    @property
    def _needs_step(self) -> bool:
        birth = self.origin.birth if self.origin is not None else None
        is_late = birth is not None and birth.direction == "optimizer"
        return is_late or self.window.is_moved

    def journey(
        self,
        contexts: Callable[[], list[AbstractContextManager[Any]]],
        is_unscaled: bool = False,
        without: int | None = None,
    ) -> Run:
        """All steps since the last snapshot (but one) and then this one, each with the change."""
        log = [w for w in self.about.core.log if w is not self.window and w.step != without]
        is_too_long = self.is_loop and len(log) > _LOOP_JOURNEY
        if not self.state.snapshot.is_taken or not log or is_too_long:
            return None
        self.state.snapshot.restore()
        self._num_passes += 1
        for window in [*log, self.window]:
            if time.perf_counter() > self._deadline:
                return None
            self.state.clear_grads()
            if window.rng is not None:
                window.rng.restore()
            result = yield Pass(
                window=window,
                mode="experiment",
                contexts=contexts(),
                is_applied=True,
                is_unscaled=is_unscaled,
            )
            if result.failure is not None or not result.is_complete:
                return _outcome(result)
            self.state.shadow_buffers()
        return "finite"

    # -- the smallest set of rows ------------------------------------------------------------------

    def bisect(self) -> Generator[Pass, PassResult, tuple[int, ...]]:
        """Rows of the batch that fail by themselves, at the same line; () where rows do not matter."""
        if self.is_loop or not self.can_replay or len(self.window.batches) != 1:
            return ()
        total = num_rows(self.window.batches[0].value)
        if total is None:
            return ()
        self._begin()
        try:
            suspects = list(range(total))
            while len(suspects) > 1 and time.perf_counter() < self._deadline:
                half = len(suspects) // 2
                for part in (suspects[:half], suspects[half:]):
                    if (yield from self._fails_alike(part, total)):
                        suspects = part
                        break
                else:
                    break
            return tuple(suspects) if len(suspects) < total else ()
        finally:
            self._end()

    def _fails_alike(self, rows: list[int], total: int) -> Generator[Pass, PassResult, bool]:
        """Whether these rows alone fail at the same place; repeated where so few do not run."""
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

    def _with_rows(self, rows: list[int], total: int) -> Generator[Pass, PassResult, PassResult]:
        ref = self.window.batches[0]
        cut = _with(ref, take_rows(ref.value, rows, total))
        return (yield from self.traced(window=self.window.with_batches([cut])))


def _with(ref: BatchRef, value: Any) -> BatchRef:
    """The same batch reference with other contents, for each loader its own share."""
    if len(ref.items) == 1:
        items = [(ref.items[0][0], value)]
    else:
        items = [(owner, part) for (owner, _), part in zip(ref.items, value)]
    return ref.again(items)


def short_place(link: Link) -> str:
    """An operator and its line, in few characters."""
    return f"{link.op} at {os.path.basename(link.file or '?')}:{link.line}"


def _outcome(result: PassResult) -> str | None:
    if result.failure is not None:
        return "nonfinite"
    return "finite" if result.is_complete else None


# -- the experiments ---------------------------------------------------------------------------------


def _higher_precision(lab: Laboratory, e: Evidence) -> Run:
    def widen(batch: Any) -> Any:
        return map_tensors(batch, lambda t: t.float() if t.dtype in _HALF else t)

    return (
        yield from lab.once([changes.higher_precision(lab.state)], batch=widen, is_applied=False)
    )


def _unscaled(lab: Laboratory, e: Evidence) -> Run:
    factor = e.scale.scaler if e.scale.is_scaler_unused else e.scale.factor
    birth = e.birth
    if (
        birth is not None
        and not e.is_backward
        and e.kernel == "mul"
        and e.operand("other") is not None
    ):
        is_scalar = all(s.num_elements == 1 for s in e.tensors)
        if is_scalar:
            return (yield from lab.once([PatchedLine(birth, drops_factor=True)]))
    if factor is None or factor <= 0:
        return (yield from lab.once(is_unscaled=True))
    if e.is_backward:
        return (yield from lab.once([changes.root_gradient(1 / factor)], is_unscaled=True))
    return (yield from lab.journey(lambda: [changes.root_gradient(1 / factor)], is_unscaled=True))


def _smaller_lr(lab: Laboratory, e: Evidence) -> Run:
    return (yield from lab.journey(lambda: [changes.scaled_lr(0.1)]))


def _much_smaller_lr(lab: Laboratory, e: Evidence) -> Run:
    return (yield from lab.journey(lambda: [changes.scaled_lr(0.001)]))


def _clipped(lab: Laboratory, e: Evidence) -> Run:
    return (yield from lab.journey(lambda: [changes.clipped(1.0)]))


def _previous_batch(lab: Laboratory, e: Evidence) -> Run:
    log = [w for w in lab.about.core.log if w is not lab.window]
    if not log:
        return None
    return (yield from lab.once(window=log[-1], is_applied=False))


def _without_rows(lab: Laboratory, e: Evidence) -> Run:
    rows, total = _offending(lab, e)
    if not rows or total is None or len(rows) >= total:
        return None
    lab.rows = rows
    if lab.is_loop:  # somebody else's loop may count on the size of its batches
        return (yield from lab.once(batch=lambda value: cover_rows(value, rows, total)))
    keep = [i for i in range(total) if i not in set(rows)]
    return (yield from lab.once(batch=lambda value: take_rows(value, keep, total)))


def _offending(lab: Laboratory, e: Evidence) -> tuple[tuple[int, ...], int | None]:
    """Rows that are bad as they are: not finite, or absurdly large."""
    if len(lab.window.batches) != 1:
        return (), None
    value = lab.window.batches[0].value
    total = num_rows(value)
    if total is None:
        return (), None
    rows: set[int] = set()
    for part in e.batch:
        if part.stats.shape[:1] == (total,):
            rows |= set(part.bad_rows)
    if rows:
        return tuple(sorted(rows)), total
    for part in e.batch:
        tensor = dict(named_tensors(value)).get(part.name)
        usual = min((v for v in (part.usual, part.usual_here) if v is not None), default=None)
        if tensor is None or usual is None or tensor.shape[:1] != (total,):
            continue
        if tensor.is_floating_point():
            high = tensor.detach().abs().reshape(total, -1).amax(1)
            rows |= {int(i) for i in (high > 1e6 * max(usual, 1e-6)).nonzero().flatten()}
    return tuple(sorted(rows)), total


def _patched_operator(lab: Laboratory, e: Evidence) -> Run:
    if e.birth is None or e.birth.file is None:
        return None
    births = [e.birth]
    while True:
        result = yield from lab.traced([PatchedLine(b) for b in births])
        another = _birth(result)
        if another is None or len(births) >= _MAX_BIRTHS or not lab.has_time:
            break
        if another.line is None or any(_is_same_line(another, b) for b in births):
            break
        births.append(another)  # one more line of this step that fails by itself
    outcome = _outcome(result)
    if outcome == "finite":
        lab.also = tuple(births[1:])
    return outcome


def _birth(result: PassResult) -> Link | None:
    if result.origin is None or result.origin.birth is None:
        return None
    chain = to_location(result.origin, "replay").chain
    return next((link for link in chain if link.role == "birth"), None)


def _is_same_line(one: Link, other: Link) -> bool:
    return (one.file, one.line) == (other.file, other.line)


def _without_outlier(lab: Laboratory, e: Evidence) -> Run:
    if e.outlier is None:
        return None
    return (yield from lab.journey(list, without=e.outlier.step))


def _limited_gradient(lab: Laboratory, e: Evidence) -> Run:
    return (yield from lab.once([LimitedGradient(1e3)], is_applied=False))


def _filled_state(lab: Laboratory, e: Evidence) -> Run:
    bad: list[Tensor] = []
    source = lab.origin.source if lab.origin is not None else None
    for _, _, t in lab.state.bad_state(ignore_initial=False):
        is_source = source is not None and t is source.tensor
        if (is_source or badness(t).has_nan) and t.layout == torch.strided:
            bad.append(t)
    if not bad:
        return None
    return (yield from lab.once([changes.filled(bad)], is_applied=_is_late(lab)))


def _fresh_optimizer(lab: Laboratory, e: Evidence) -> Run:
    return (yield from lab.once([changes.fresh_optimizer(lab.state)], is_applied=True))


def _finite_lr(lab: Laboratory, e: Evidence) -> Run:
    rates = [r for record in e.history for r in record.lr if r == r and abs(r) != float("inf")]
    rate = rates[-1] if rates else 1e-4
    return (yield from lab.once([changes.with_setting("lr", rate)], is_applied=True))


def _larger_eps(lab: Laboratory, e: Evidence) -> Run:
    eps = 1e-4 if any(p.dtype in _HALF for _, p in lab.state.parameters()) else 1e-8
    return (yield from lab.once([changes.with_setting("eps", eps)], is_applied=True))


def _is_late(lab: Laboratory) -> bool:
    source = lab.origin.source if lab.origin is not None else None
    return source is not None and source.kind == "optimizer_state"


_RUNNERS: dict[str, Callable[[Laboratory, Evidence], Run]] = {
    "higher_precision": _higher_precision,
    "unscaled": _unscaled,
    "smaller_lr": _smaller_lr,
    "much_smaller_lr": _much_smaller_lr,
    "clipped": _clipped,
    "previous_batch": _previous_batch,
    "without_rows": _without_rows,
    "patched_operator": _patched_operator,
    "without_outlier": _without_outlier,
    "limited_gradient": _limited_gradient,
    "filled_state": _filled_state,
    "fresh_optimizer": _fresh_optimizer,
    "finite_lr": _finite_lr,
    "larger_eps": _larger_eps,
}
