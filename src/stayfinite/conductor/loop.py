"""`for batch in guard(loader)` and `stayfinite run`: the user's own loop is the vehicle.

After a failed step the stream hands out the same batch again, traced, and the loop runs its body
again without knowing. Nothing here asks what the loop looks like; it only watches where backward and
optimizer steps fall between the batches.
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..observe.wires import Listener
from ..observe.witness import witness
from ..recover.snapshot import Snapshot
from .body import Scene, scenes_of_frame
from .core import Core
from .investigation import Investigation, Verdict, small_state
from .passes import ActivePass
from .ranks import RankFailure, plain_norm
from .window import BatchRef, Failure, Pass, PassResult, Window

__all__ = ["LoopDriver"]

_NOTHING = object()


class _Abort(Exception):
    """Leaves a closure-driven optimizer in the middle of its step."""


class LoopDriver(Listener):
    """Drives one training loop; the listener of the wires."""

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
        self._holds_schedulers = False
        self._aside: BatchRef | None = None
        self.last_call: Any = None

    mutes_replays = False
    """Whether what the loop prints while it is run again is thrown away."""

    def before_window(self) -> None:
        """A window is about to open; a driver that has to find the models looks now."""

    @property
    def is_replaying(self) -> bool:
        return self.active is not None

    # -- batches -------------------------------------------------------------------------------

    def stream(self, owner: Any, inner: Iterator[Any]) -> Iterator[Any]:
        """The loader's batches, each of them again when its step has to be run again."""
        has_trained = False
        try:
            while True:
                window = self.window
                if window is not None and self._is_over(window, owner):
                    self._close(window)
                else:
                    self._settle(owner)
                item = self._served(owner) if self._to_serve or self._redo else _NOTHING
                if item is _NOTHING:
                    try:
                        item = next(inner)
                    except StopIteration:
                        if not (has_trained and self._end_of_epoch(owner)):
                            return
                        continue
                    if self.core.recovery.drops and self._drops(owner):
                        continue
                    self._register(owner, item)
                yield item
                if not has_trained:
                    has_trained = self._is_training(owner)
        finally:
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

    def _register(self, owner: Any, item: Any) -> None:
        """A new batch goes into the window, or beside it while that is still to be settled."""
        epoch = self._epoch(owner)
        window = self.window
        if window is None:
            self.before_window()
            rng = self.core.open()
            ref = BatchRef(self.num_batches, epoch, [(owner, item)], rng)
            ref.indices = witness.batch_indices
            self.window = Window([ref], rng, self.state.lrs())
            return
        if window.num_attempted and not _owns(window, owner):
            if self._aside is None or any(o is owner for o, _ in self._aside.items):
                self._aside = self._new_ref(epoch)
            self._aside.items.append((owner, item))
            return
        last = window.batches[-1]
        if any(o is owner for o, _ in last.items):
            last = self._next_ref(window, epoch)
        last.items.append((owner, item))
        if last.indices is None:
            last.indices = witness.batch_indices

    def _new_ref(self, epoch: int) -> BatchRef:
        return BatchRef(self.num_batches, epoch, [], self.core.rng.capture())

    def _next_ref(self, window: Window, epoch: int) -> BatchRef:
        """The same loader gave another batch before any optimizer step."""
        last = window.batches[-1]
        if last.is_used or self.counts_every_batch:
            self.num_batches += 1
        ref = self._new_ref(epoch)
        if last.is_used and window.num_backward:
            window.batches.append(ref)  # gradient accumulation
        else:
            window.batches[-1] = ref  # nothing was learned from it: validation, or thrown away
            window.suspects = ()
            if len(window.batches) == 1:
                window.rng = ref.rng
        return ref

    def _served(self, owner: Any) -> Any:
        for entry in self._to_serve:
            if entry[0] is owner:
                self._to_serve.remove(entry)
                ref = entry[2]
                if ref.rng is not None and self.active is not None and ref.items[0][0] is owner:
                    ref.rng.restore()
                if self.active is not None:
                    self._current = ref
                return entry[1]
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
        self.num_batches += 1
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
            return
        if ranks.has_parted and isinstance(failure, RankFailure) and failure.rank != ranks.rank:
            return  # the rank that has it tells of it
        if failure.symptom == "scaler_skip" and self.core.passes_by_skip():
            return
        window.root_call = self.last_call
        self._investigation = Investigation(self.core, window, failure)
        self._passes = self._investigation.run()
        self._advance(None)

    def _advance(self, result: PassResult | None) -> None:
        assert self._passes is not None
        try:
            wanted = next(self._passes) if result is None else self._passes.send(result)
        except StopIteration as stop:
            self._end(stop.value)
            return
        if self.mutes_replays and any(b.items for b in wanted.window.batches):
            # The loop's body runs once more for us alone: its words have been said already.
            wanted.contexts.append(contextlib.redirect_stdout(io.StringIO()))
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
        self._passes = self._investigation = None
        self.window = None
        if verdict.incident is not None:
            self.core.conclude(verdict)
        self._redo.extendleft(reversed(verdict.redo))

    def abandon(self, scenes: list[Scene] | None = None) -> None:
        """The loop is over in the middle of something: finish the report with what is known."""
        self.core.ranks.leave()
        if self.active is None and self.window is None and self.core.ranks.has_parted:
            self._last_look()
        window = self.window
        if (
            self.active is None
            and window is not None
            and window.failure is None
            and window.suspects
            and not window.num_attempted
        ):
            window.failure = self.core.explain(window, [])  # it saw a NaN itself and gave up
            window.small_state = small_state(self.state)
        if self.active is None and self.window is not None and self.window.failure is not None:
            window, self.window = self.window, None
            window.is_lost = True
            window.scenes = scenes or ()
            assert window.failure is not None
            self._begin(window, window.failure)
        for window, failure in self._waiting:
            if self.active is None:
                self._begin(window, failure)
        self._run_out()

    def _last_look(self) -> None:
        """Without the others the last steps have not been looked at yet."""
        _, bad, _ = self.core.collect(is_last=True)
        late = self.core.late_failure(bad) if bad is not None else None
        if bad is not None and late is not None:
            bad.is_lost = True
            self._begin(bad, late)
            return
        if self.core.log:
            last = self.core.log[-1]
            failure = self.core.deep_check(last.step)
            if failure is not None:
                self._begin(last, failure)

    def _run_out(self) -> None:
        """Nobody will run the passes that are still wanted."""
        while self.active is not None:
            active, self.active = self.active, None
            active.__exit__(None, None, None)
            if not active.result.failure:
                active.result.is_complete = False
            self._to_serve.clear()
            self._advance(active.result)

    # -- what the wires tell -----------------------------------------------------------------------

    def on_optimizer(self, optimizer: Optimizer) -> None:
        self.state.add_optimizer(optimizer)

    def on_scheduler(self, scheduler: Any) -> None:
        self.state.add_scheduler(scheduler)

    def on_scheduler_step(self, scheduler: Any, call: Callable[[], Any]) -> Any:
        """A step that was not applied does not move the schedule either."""
        self.on_scheduler(scheduler)
        if self._holds_schedulers or (
            self.active is not None and not self.active.wanted.is_applied
        ):
            return None
        failure = self.window.failure if self.window is not None else None
        is_scaler_skip = failure is not None and failure.symptom == "scaler_skip"
        return call() if failure is None or is_scaler_skip else None

    def on_average(self, call: Callable[[], Any]) -> Any:
        """Nor does it move a running average of the weights."""
        if self.active is not None and not self.active.wanted.is_applied:
            return None
        failure = self.window.failure if self.window is not None else None
        return call() if failure is None or failure.symptom == "scaler_skip" else None

    def _take_aside(self) -> None:
        """The batch of another loader turns out to be trained on: it opens the next window."""
        if self._aside is None or not torch.is_grad_enabled():
            return
        ref, self._aside = self._aside, None
        window = self.window
        if window is not None:
            self.window = None
            self.num_batches += 1
            if window.failure is not None:
                self._waiting.append((window, window.failure))
            else:
                self.core.close_healthy(window)
        ref.step = self.num_batches
        self.state.shadow_buffers()
        self.window = Window(batches=[ref], rng=ref.rng, lrs=self.state.lrs())

    def before_backward(self, loss: Tensor) -> bool:
        """The ordinary case: note the loss and let the backward run; False for `on_backward`."""
        window = self.window
        if (
            window is None
            or self.active is not None
            or self._aside is not None
            or self._raw_loss is not None
            or self._holds_schedulers
            or loss.numel() != 1
        ):
            return False
        ref = window.batches[-1]
        ref.is_used = True
        window.losses.append((ref.step, loss))
        window.num_backward += 1
        return True

    def on_backward(self, loss: Tensor, call: Callable[[], Any]) -> Any:
        self._take_aside()
        if self.active is None:
            self._holds_schedulers = False
        if self.window is None and self.active is None:
            self._open_free()
        raw = self._raw_loss
        seen = raw[0] if raw is not None and raw[1] is loss else loss
        step = self._mark_used()
        if self.active is not None:
            self.active.before_backward(seen, step)
        elif self.window is not None and seen.numel() == 1:
            self.window.losses.append((step, seen.detach()))
            self.window.num_backward += 1
        result = call()
        if self.active is not None and raw is None:
            self.active.after_backward(step)
        return result

    def _mark_used(self) -> int:
        if self.active is not None:
            return self._current.step
        if self.window is None:
            return self.num_batches
        ref = self.window.batches[-1]
        ref.is_used = True
        return ref.step

    def on_clip(self, norm: Tensor) -> None:
        if self.window is not None and self.active is None and norm.dim() == 0:
            self.window.norm = plain_norm(norm.detach())

    def on_scale(self, scaler: Any, raw: Tensor, scaled: Tensor) -> None:
        self.state.add_scaler(scaler)
        self._raw_loss = (raw, scaled) if scaler.is_enabled() else None

    def on_scaler_step(self, scaler: Any, optimizer: Optimizer, call: Callable[[], Any]) -> Any:
        """The scaler decides by itself; that it did not call the optimizer is the news."""
        self._step_called = False
        self.core.is_shared(optimizer)
        result = call()
        if not self._step_called and scaler.is_enabled():
            if self.active is not None:
                self.active.after_backward(self._current.step)
            elif self.window is not None:
                self._note_scaler_skip(self.window)
        return result

    def _note_scaler_skip(self, window: Window) -> None:
        window.num_attempted += 1
        if window.failure is None:
            failure = self.core.ranks.agree(self.core.explain(window, []))
            window.failure = failure or Failure("scaler_skip", window.step)
            window.small_state = small_state(self.state)
        if self._is_free:
            self._close_free()

    def on_own_check(self, value: Tensor) -> None:
        if not value.requires_grad:
            return
        self._take_aside()
        if self.active is not None:
            self.active.own_check(value, self._current.step)
        elif self.window is not None:
            ref = self.window.batches[-1]
            ref.is_used = True
            seen = (ref.step, value.detach())
            self.window.suspects = (*self.window.suspects, seen)

    def before_step(self, optimizer: Optimizer) -> bool:
        """The ordinary case: look, and let the optimizer move; False for `on_optimizer_step`."""
        window = self.window
        if (
            window is None
            or self.active is not None
            or self._aside is not None
            or self._raw_loss is not None
            or self._is_free
            or window.failure is not None
            or window.num_attempted
            or self.core.settings.deferred
            or optimizer not in self.state.optimizers
            or "found_inf" in optimizer.__dict__
        ):
            return False
        window.batches[-1].is_used = True
        failure = self.core.check(window, optimizer)
        if failure is not None:
            self._refuse(window, failure)
            return False
        self._step_called = True
        window.num_attempted = window.num_applied = 1
        return True

    def step_raised(self) -> None:
        """The optimizer that was let go did not come back."""
        if self.window is not None:
            self.window.num_applied -= 1

    def on_optimizer_step(
        self, optimizer: Optimizer, closure: Any, call: Callable[[Any], Any]
    ) -> Any:
        self._step_called = True
        self.state.add_optimizer(optimizer)
        if closure is not None:
            return self._closure_step(optimizer, closure, call)
        self._take_aside()
        if self.active is not None:
            return self._active_step(optimizer, lambda: call(None))
        if self.window is None:
            self._open_free()
        window = self.window
        assert window is not None
        window.batches[-1].is_used = True
        window.num_attempted += 1
        if window.failure is None and self.core.is_deferred(optimizer):
            return self.core.step_deferred(window, optimizer, lambda: call(None))
        if self._is_bad(window, optimizer):
            _mark_called(optimizer)
            if self._is_free:
                self._close_free()
            return None
        result = call(None)
        window.num_applied += 1
        if self._is_free:
            self._close_free()
        return result

    def _is_bad(self, window: Window, optimizer: Optimizer) -> bool:
        found = getattr(optimizer, "found_inf", None)
        if window.failure is None and found is not None and found.item():
            # A fused optimizer under a scaler is called even so, and skips by itself.
            failure = self.core.ranks.agree(self.core.explain(window, []))
            window.failure = failure or Failure("scaler_skip", window.step)
            window.small_state = small_state(self.state)
        if window.failure is None:
            is_scaled = self._raw_loss is not None
            if is_scaled and window.norm is None:
                failure = self._loss_only(window, optimizer)  # the scaler has passed the gradients
            else:
                failure = self.core.check(window, optimizer)
            if failure is not None:
                self._refuse(window, failure)
        # Another optimizer of this very batch may have moved already: then only going back helps.
        window.is_moved = window.num_applied > 0
        return window.failure is not None

    def _refuse(self, window: Window, failure: Failure) -> None:
        window.failure = failure
        window.small_state = small_state(self.state)
        # What the loop does before it asks for the next batch (saving, validating) must
        # not see the buffers that the bad forward has written.
        self.state.restore_buffers()

    def _loss_only(self, window: Window, optimizer: Optimizer) -> Failure | None:
        if self.core.is_shared(optimizer):
            failure = self.core.check_together(window, optimizer, is_scaled=True)
            return failure or self.core.see(window)
        for step, loss in window.losses:
            value = loss.item()
            if not math.isfinite(value):
                return Failure("loss", step, value=value)
        return self.core.see(window)

    def _active_step(self, optimizer: Optimizer, call: Callable[[], Any]) -> Any:
        assert self.active is not None
        step = self._current.step
        self.active.after_backward(step)
        self.active.agree()
        if not self.active.wanted.is_applied:
            self.state.restore_buffers()
        if self._is_free:
            return self._free_step(optimizer, call)
        _mark_called(optimizer)
        return self.active.on_step(optimizer, call, step)

    def _closure_step(self, optimizer: Optimizer, closure: Any, call: Callable[[Any], Any]) -> Any:
        """The optimizer evaluates the loss itself, once (Lightning) or many times (LBFGS)."""
        if not isinstance(optimizer, torch.optim.LBFGS):
            with torch.enable_grad():
                loss = closure()
            return self.on_optimizer_step(optimizer, None, lambda _: call(lambda: loss))
        before = Snapshot()
        own, self.state.snapshot = self.state.snapshot, before
        self.state.take_snapshot(0)
        self.state.snapshot = own
        found: list[Failure] = []

        def watched() -> Any:
            loss = closure()
            window = self.window
            if self.active is not None:
                self.active.after_backward(self._current.step)
                self.active.agree()
                if self.active.is_decided:
                    raise _Abort
            elif window is not None:
                window.losses = window.losses[-1:]
                failure = self.core.check(window, optimizer)
                if failure is not None:
                    found.append(failure)
                    raise _Abort
            return loss

        return self._run_closure(optimizer, watched, call, before, found)

    def _run_closure(
        self, optimizer: Optimizer, watched: Any, call: Callable[[Any], Any], before: Snapshot,
        found: list[Failure],
    ) -> Any:  # fmt: skip
        if self.window is None and self.active is None:
            self._open_free()
        try:
            result = call(watched)
        except _Abort:
            before.restore()
            result = None
        if self.active is not None:
            if not self.active.wanted.is_applied:
                before.restore()
            if self._is_free:
                self._pass_done()
            return result
        window = self.window
        if window is not None:
            window.num_attempted += 1
            if found:
                window.failure, window.small_state = found[0], small_state(self.state)
            else:
                window.num_applied += 1
        if self._is_free:
            self._close_free()
        return result

    # -- loops without a loader --------------------------------------------------------------------

    def _open_free(self) -> None:
        """No loader in sight: a window runs from one optimizer step to the next."""
        self._is_free = True
        self.before_window()
        self.core.prime()
        if not self.core.log and self.state.snapshot.is_taken:
            self.state.snapshot.retake_small(
                self.state.snapshot_slots()
            )  # the schedule's last step
        ref = BatchRef(self.num_batches, 0, [])
        self.window = Window(batches=[ref], rng=self._free_rng, lrs=self.state.lrs())

    _free_rng: Any = None

    def _close_free(self) -> None:
        window, self.window = self.window, None
        assert window is not None
        self.num_batches += 1
        failure = window.failure or self.core.close_healthy(window)
        self._is_free = False
        if failure is None:
            # The next window shows itself only when its forward is over.
            self._free_rng = self.core.open()
            return
        window.scenes = scenes_of_frame(sys._getframe(1))
        self._begin(window, failure)
        window.scenes = ()
        self._is_free = self.active is not None
        self._holds_schedulers = failure.symptom != "scaler_skip"

    def _free_step(self, optimizer: Optimizer, call: Callable[[], Any]) -> Any:
        """The step that ends a traced iteration; if that was healthy, it counts."""
        assert self.active is not None
        is_healthy = not self.active.is_decided
        self._pass_done()
        self._is_free = self.active is not None
        if is_healthy and self.active is None:
            self._holds_schedulers = False
            result = call()
            self.state.shadow_buffers()
            self._free_rng = self.core.rng.capture()
            return result
        _mark_called(optimizer)
        if not self._is_free:
            self._free_rng = self.core.rng.capture()
        return None


def _owns(window: Window, owner: Any) -> bool:
    return any(o is owner for b in window.batches for o, _ in b.items)


def _mark_called(optimizer: Optimizer) -> None:
    """The scheduler warns when it moves before the optimizer; a skipped step is no reason to."""
    optimizer._opt_called = True  # type: ignore[attr-defined]
