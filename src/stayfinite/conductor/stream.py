"""The batches of a loop, each of them again when its step has to be run again.

Nothing here asks what the loop looks like; windows are opened, closed and sent round once more by
where backward and optimizer steps fall between the batches.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections import UserDict, deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

from torch import Tensor

from ..observe.counters import Counters, Numbers, frames_above
from ..observe.turns import Turns
from ..observe.wires import Listener
from ..observe.witness import witness
from .core import Core
from .investigation import Investigation, Verdict, small_state
from .mute import muted
from .passes import ActivePass
from .ranks import RankFailure
from .window import BatchRef, Failure, Pass, PassResult, Window

__all__ = ["BatchStream"]

_NOTHING = object()
_MAX_AHEAD = 64


class BatchStream(Listener):
    """Hands out batches and looks after their windows."""

    def __init__(self, core: Core, counts_every_batch: bool) -> None:
        self.core = core
        self.state = core.state
        self.counts_every_batch = counts_every_batch
        self.window: Window | None = None
        self.active: ActivePass | None = None
        self.num_batches = 0
        self._investigation: Investigation | None = None
        self._passes: Generator[Pass, PassResult, Verdict] | None = None
        self._to_serve: deque[tuple[Any, Any, BatchRef]] = deque()
        self._redo: deque[Window] = deque()
        self._waiting: list[tuple[Window, Failure]] = []
        self._epochs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._num_epochs = 0
        self._raw_loss: tuple[Tensor, Tensor] | None = None
        self._step_called = False
        self._is_free = False
        self._stepped: set[int] = set()
        """Optimizers that have stepped in this turn of a loop without a loader."""
        self._holds_schedulers = False
        self._moves: list[Callable[[], Any]] = []
        """Steps of schedulers that are made up for when the step is explained."""
        self._rates: tuple[float, ...] | None = None
        """The learning rates when the loop asked for the batch behind the one that failed: it may have
        set them for that one already."""
        self._numbers: Numbers | None = None
        """What the loop counted with inside the turn that failed."""
        self._turns: Turns | None = None
        self._is_own_work = False
        """What is computed now is not the loop's doing."""
        self._aside: BatchRef | None = None
        self.last_call: Any = None
        self.is_over = False
        """Nothing that is still open will be asked for another batch."""

    def before_window(self) -> None:
        """A window is about to open; a driver that has to find the models looks now."""

    @property
    def num_steps(self) -> int:
        """Batches that the loop has trained on, or turns that it has made."""
        is_open = self.window is not None and self.window.num_attempted > 0
        return self.num_batches + (bool(self._stepped) or is_open)

    @property
    def is_replaying(self) -> bool:
        return self.active is not None

    # -- batches -------------------------------------------------------------------------------

    def stream(self, owner: Any, inner: Iterator[Any]) -> Iterator[Any]:
        """The loader's batches, each of them again when its step has to be run again."""
        has_trained = False
        count, epoch = 0, self._epoch(owner)
        counters: Counters | None = None
        try:
            while True:
                window = self.window
                if counters is not None and not self._to_serve:
                    counters.cut_lists()
                if window is not None and self._is_over(window, owner):
                    self._close(window)
                else:
                    self._settle(owner)
                item = self._served(owner) if self._to_serve or self._redo else _NOTHING
                if item is _NOTHING:
                    if self._turns is not None:
                        self._go_on(counters, count)
                        counters = None
                    try:
                        item = next(inner)
                    except StopIteration:
                        if not (has_trained and self._end_of_epoch(owner)):
                            return
                        continue
                    if self.core.recovery.drops and self._drops(owner):
                        count += 1
                        continue
                    self._register(owner, item, epoch, count)
                    count += 1
                elif self._served_ref.items[0][0] is owner:  # of several, the one asked first
                    if self._turns is None:
                        counters = Counters.of(sys._getframe(), count, self._numbers)
                        self._turns = Turns(frames_above(sys._getframe()))
                    self._numbers = None
                    if counters is not None:
                        if self._is_first_served():
                            counters.note_lists(is_ours=self.active is not None)
                        counters.again(self._served_ref.ordinal)
                yield item
                if not has_trained:
                    has_trained = self._is_training(owner)
        finally:
            if counters is not None:
                self._let_turn()
            if not self.is_over:
                self._leave(owner, has_trained)

    def _is_first_served(self) -> bool:
        """Whether the batch that is handed out again begins its window: then a turn begins."""
        window = self.active.wanted.window if self.active is not None else self.window
        return window is not None and self._served_ref is window.batches[0]

    def _go_on(self, counters: Counters | None, count: int) -> None:
        """The next new batch: the loop stands where it stood when it asked for it first."""
        if counters is not None:
            counters.go_on(count)
        self._let_turn()
        if self._rates is not None:
            self.state.set_lrs(self._rates)
            self._rates = None

    def _let_turn(self) -> None:
        """The loop makes turns of its own again."""
        if self._turns is not None:
            self._turns.close()
            self._turns = None

    def _leave(self, owner: Any, has_trained: bool) -> None:
        """A loader is through, or its loop was left."""
        if self.active is not None and _owns(self.active.wanted.window, owner):
            self._run_out()  # in the middle of a turn that was being run again
        self._forget(owner)
        if has_trained:
            self._end_epoch(owner)

    def _is_over(self, window: Window, owner: Any) -> bool:
        """The ordinary case, by the fewest looks: its one batch is ours, and its step was applied."""
        return (
            window.num_applied == 1
            and window.failure is None
            and self.active is None
            and self._aside is None
            and not self._waiting
            and not self._to_serve
            and window.num_attempted == 1
            and len(items := window.batches[-1].items) == 1
            and items[0][0] is owner
        )

    def _epoch(self, owner: Any) -> int:
        # What is given to guard(...) is the training, whatever wraps it this time.
        return self._num_epochs if self.counts_every_batch else self._epochs.get(owner, 0)

    def _end_epoch(self, owner: Any) -> None:
        self.core.recovery.note_epoch()
        if self.counts_every_batch:
            self._num_epochs += 1
        else:
            self._epochs[owner] = self._epochs.get(owner, 0) + 1

    def _drops(self, owner: Any) -> bool:
        """A rollback leaves some of the batches after it out as well."""
        if self.active is not None:
            return False
        ref = BatchRef(self.num_batches, self._epoch(owner), [])
        ref.indices = witness.batch_indices
        is_first = next(iter(self.core.recovery.drops)) == id(owner)
        if not self.core.recovery.drops_batch(ref, owner, is_first):
            return False
        self.num_batches += is_first
        return True

    def _forget(self, owner: Any) -> None:
        """A loader is through: what it gave without being trained on belongs to no step."""
        if self._aside is not None and any(o is owner for o, _ in self._aside.items):
            self._aside = None
        window = self.window
        if window is None or window.num_attempted or window.num_backward or self.active is not None:
            return
        last = window.batches[-1]
        if not last.is_used:
            last.items = [(o, i) for o, i in last.items if o is not owner]
            if not last.items and len(window.batches) == 1:
                self.window = None

    def _is_training(self, owner: Any) -> bool:
        window = self.window
        return window is not None and any(
            o is owner for b in window.batches if b.is_used for o, _ in b.items
        )

    def _register(self, owner: Any, item: Any, epoch: int, ordinal: int) -> None:
        """A new batch goes into the window, or beside it while that is still to be settled."""
        window = self.window
        if window is None:
            self.before_window()
            rng = self.core.open()
            ref = BatchRef(self.num_batches, epoch, [(owner, _copied(item))], rng)
            ref.indices = witness.batch_indices
            ref.ordinal = ordinal
            self.window = Window([ref], rng, self.state.lrs())
            return
        if window.num_attempted and not _owns(window, owner):
            if self._aside is None or any(o is owner for o, _ in self._aside.items):
                self._aside = self._new_ref(epoch, ordinal)
            self._aside.items.append((owner, _copied(item)))
            return
        last = window.batches[-1]
        if any(o is owner for o, _ in last.items):
            last = self._next_ref(window, epoch, ordinal)
        last.items.append((owner, _copied(item)))
        if last.indices is None:
            last.indices = witness.batch_indices

    def _new_ref(self, epoch: int, ordinal: int) -> BatchRef:
        ref = BatchRef(self.num_batches, epoch, [], self.core.rng.capture())
        ref.ordinal = ordinal
        return ref

    def _next_ref(self, window: Window, epoch: int, ordinal: int) -> BatchRef:
        """The same loader gave another batch before any optimizer step."""
        last = window.batches[-1]
        if last.is_used or self.counts_every_batch:
            self.num_batches += 1
        ref = self._new_ref(epoch, ordinal)
        if last.is_used and window.num_backward:
            window.batches.append(ref)  # gradient accumulation
            window.ahead = ()
        else:
            window.batches[-1] = ref  # nothing was learned from it yet
            window.ahead = (*window.ahead[-_MAX_AHEAD:], last)
            window.suspects = ()
            if len(window.batches) == 1:
                window.rng = ref.rng
        return ref

    def _served(self, owner: Any) -> Any:
        for entry in self._to_serve:
            if entry[0] is owner:
                self._to_serve.remove(entry)
                self._served_ref = ref = entry[2]
                if ref.rng is not None and self.active is not None and ref.items[0][0] is owner:
                    ref.rng.restore()
                if self.active is not None:
                    self._current = ref
                return _copied(entry[1])
        if self.active is None and self._redo and _owns(self._redo[0], owner):
            window = self._redo.popleft()
            self._serve_again(window)
            return self._served(owner)
        return _NOTHING

    def _serve_again(self, old: Window) -> None:
        """A window that ran on corrupt state, from its start, as if it were new."""
        rng = self.core.open()
        refs = [b.again() for b in old.batches]
        refs[0].rng = rng
        self.window = Window(batches=refs, rng=rng, lrs=self.state.lrs())
        self._to_serve.extend((o, i, ref) for ref in refs for o, i in ref.items)

    # -- the end of a window ---------------------------------------------------------------------

    def _settle(self, owner: Any) -> None:
        """Called before each batch: close what is done, and go where the investigation leads."""
        if self.active is not None:
            if any(o is owner for o, _, _ in self._to_serve):
                return
            self._pass_done()
            return
        if self._waiting:
            for entry in self._waiting:
                if _owns(entry[0], owner):
                    self._waiting.remove(entry)
                    self._begin(*entry)
                    return
        window = self.window
        if window is None or not _owns(window, owner) or self._to_serve:
            return
        self._aside = None  # what other loaders gave in between was not trained on
        if window.num_attempted == 0:
            self._settle_unstepped(window)
            return
        self._close(window)

    def _settle_unstepped(self, window: Window) -> None:
        """The loop went on without a step: did it see a NaN itself?"""
        if window.failure is None and window.suspects and not window.num_backward:
            window.failure = self.core.explain(window, [])
            if window.failure is not None:
                window.small_state = small_state(self.state)
                if self.core.ranks.is_on:
                    self._report_alone(window)
                else:
                    self._close(window)

    def _report_alone(self, window: Window) -> None:
        """Whether the loop skipped on every rank is not known, so nobody else is asked."""
        self.window = None
        self.num_batches += 1
        window.is_lost = True
        with self.core.ranks.alone():
            self._begin(window, window.failure or Failure("loss", window.step))
            self._run_out()

    def _close(self, window: Window) -> None:
        self.window = None
        step = window.batches[-1].step
        if step >= self.num_batches:  # one that runs again is not new
            self.num_batches = step + 1
        failure = window.failure
        if failure is None and window.is_moved and self.core.settings.deferred:
            self._collect()
            return
        if failure is None:
            failure = self.core.close_healthy(window)
            if window.num_applied and self.state.scalers:
                self.core.scale_watch.note_applied()
        if failure is not None:
            self._begin(window, failure)

    def _collect(self, is_last: bool = False) -> None:
        """Deferred steps: close those that went well, look into the first that did not."""
        fine, bad, later = self.core.collect(is_last)
        for window in fine:
            window.is_moved = False
            failure = self.core.close_healthy(window)
            if failure is not None:
                self._begin(window, failure)
                return
        if bad is not None:
            self._redo.extend(later)
            failure = self.core.late_failure(bad)
            assert failure is not None  # only after parting is it another rank's business
            self._begin(bad, failure)

    def _end_of_epoch(self, owner: Any) -> bool:
        """A last deep check; True if batches are to be served again."""
        if self.core.ranks.is_on:
            self.core.want_deep_check()
            return False
        if self.active is None:
            self._collect(is_last=True)
            if self._to_serve or self._redo:
                return True
        if self.active is not None or not self.core.log:
            return False
        last = self.core.log[-1]
        failure = self.core.deep_check(last.step)
        if failure is None:
            return False
        self._begin(last, failure)
        return bool(self._to_serve or self._redo)

    # -- investigations --------------------------------------------------------------------------

    def _begin(self, window: Window, failure: Failure) -> None:
        ranks = self.core.ranks
        if ranks.is_joining():
            self._make_moves()
            return
        if ranks.has_parted and isinstance(failure, RankFailure) and failure.rank != ranks.rank:
            return  # the rank that has it tells of it
        if failure.symptom == "scaler_skip" and self.core.passes_by_skip():
            return
        is_set = not self.state.schedulers and failure.symptom != "learning_rate"
        self._rates = self.state.lrs() if is_set else None
        window.root_call = window.root_call or self.last_call
        if not window.is_lost and any(b.items for b in window.batches):
            window.scenes = ()  # the loop will run it again itself
        self._investigation = Investigation(self.core, window, failure)
        self._passes = self._investigation.run()
        self._advance(None)

    def _advance(self, result: PassResult | None) -> None:
        assert self._passes is not None
        self._is_own_work = True
        try:
            wanted = next(self._passes) if result is None else self._passes.send(result)
        except StopIteration as stop:
            self._end(stop.value)
            return
        finally:
            self._is_own_work = False
        if any(b.items for b in wanted.window.batches):
            # The loop's body runs once more for us alone: its words have been said already.
            wanted.contexts.append(muted(frames_above(sys._getframe())))
        self.active = ActivePass(self.core, wanted)
        self._current = wanted.window.batches[0]
        self._to_serve.clear()
        self._to_serve.extend((o, i, ref) for ref in wanted.window.batches for o, i in ref.items)
        self.active.__enter__()

    def _pass_done(self) -> None:
        active, self.active = self.active, None
        assert active is not None
        self._to_serve.clear()
        active.__exit__(None, None, None)
        self._advance(active.result)

    def _end(self, verdict: Verdict) -> None:
        self._passes = self._investigation = self._numbers = None
        self.window = None
        if verdict.incident is not None:
            told = self.core.conclude(verdict)
            if told.action.kind == "rolled_back":
                self._rates = None  # the policy may have set others
        self._make_moves()
        self._redo.extendleft(reversed(verdict.redo))

    def _make_moves(self) -> None:
        for move in self._moves:
            move()
        self._moves.clear()

    def _run_out(self) -> None:
        """Nobody will run the passes that are still wanted."""
        while self.active is not None:
            active, self.active = self.active, None
            active.__exit__(None, None, None)
            if not active.result.failure:
                active.result.is_complete = False
            self._to_serve.clear()
            self._advance(active.result)


def _copied(item: Any) -> Any:
    """A batch that a loop takes apart (`batch.pop("labels")`) is whole when it is handed out again."""
    kind = type(item)
    if kind is tuple or kind is Tensor:
        return item
    if kind is dict or kind is list:
        return kind(item)
    return copy.copy(item) if isinstance(item, UserDict) else item


def _owns(window: Window, owner: Any) -> bool:
    return any(o is owner for b in window.batches for o, _ in b.items)
