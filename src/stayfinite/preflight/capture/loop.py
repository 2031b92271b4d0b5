"""Uses an unmodified script's own loop to run probes.

The first steps are observed unchanged. Then the state before the first step is restored, and whenever the loop requests a batch,
it gets the batch of a probe.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...investigate.replays.tracing import eager_stance
from ...runtime.discover import find_models, find_stateful, reachable_modules
from ...runtime.rows import num_rows
from ...runtime.state import TrainState
from ..layers_leaves import user_variables
from ..probes import Probe, Seen, Step, Subject
from ..runner.build import model_device
from ..runner.casts import autocast_off
from ..runner.probe_runner import Attempt, Bench, step_schedule
from .own_checks import OwnChecks
from .watch import LoopWatch, criteria, is_in, no_change

__all__ = ["Captor", "Finished", "KeptBatches", "Unprobed"]

Conducted = Generator[Probe, Seen, None]


class Finished(BaseException):
    """Raised when everything is known, to end the script. A BaseException, so that the script does not catch it."""


class KeptBatches(BaseException):
    """Raised if the loop reuses batches that it has stored, so that it cannot be given others."""


class Unprobed(BaseException):
    """Raised if the loop has nothing that a probe could change."""


_PATIENCE = 12
"""The number of steps after which a loop counts as one without a loader."""


class Captor:
    """Observes the loop first, then gives it probes."""

    def __init__(self, num_first: int, begin: Callable[[Subject], Conducted]) -> None:
        self.state = TrainState()
        self.bench = Bench(self.state)
        self.watch = LoopWatch(self.state)
        self.subject: Subject | None = None
        self.clip_norm: float | None = None
        self.dtypes: set[torch.dtype] = set()
        self.attempt: Attempt | None = None
        self.num_backward = self.num_optimizers = 0
        self.thread = 0
        """The thread that trains."""
        self.on_loaderless: Callable[[], None] = lambda: None
        """Called once if the loop does not take its batches from a loader."""
        self._num_first = num_first
        self._begin = begin
        self._conducted: Conducted | None = None
        self._is_busy = False
        self._loaders: list[Any] = []
        """Kept alive, because an iterator does not refer to its loader."""
        self._num_drawn: dict[int, int] = {}
        """Batches of each loader's present epoch."""
        self._asked: Any = None
        """The loader that was asked last."""
        self._to_serve: deque[tuple[Any, Any]] = deque()
        self._repeats = 0
        self._raw: tuple[Any, Tensor, Tensor] | None = None
        self._known: tuple[int, ...] = ()
        self._in_backward = False
        self._is_loaderless = False
        self._call: Any = None

    @property
    def steps(self) -> list[Step]:
        return self.watch.steps

    @property
    def moves(self) -> bool:
        """Whether the current step is applied."""
        return self.attempt is None or self.attempt.probe.apply

    def start_where_it_stands(self) -> Conducted | None:
        """Called if the script ends early: run the checks that need no further step."""
        if not self.state.roots:
            self._find_models()
        if not self.state.roots:
            return None
        self._is_busy = True
        self.bench.reset()
        if not self.watch.loaders:
            items = self.watch.iteration.items
            asked = [self._asked] if self._asked is not None else []
            self.watch.loaders = [loader for loader, _ in items] or asked
            self.watch.batches += [batch for _, batch in items[:1]]
        self.subject = self._make_subject()
        return self._begin(self.subject)

    def note_end(self) -> None:
        """Called when the script has ended: count its last step."""
        if self._conducted is None and self.watch.iteration.num_steps:
            self.watch.close()

    def on_iterator(self, loader: Any) -> None:
        """Called when an epoch over this loader begins."""
        if not is_in(loader, self._loaders):
            self._loaders.append(loader)
        self._num_drawn[id(loader)] = 0

    def draw(self, loader: Any, draw: Callable[[], Any]) -> Any:
        """The loader's own batch while observing, and a probe's batch afterwards."""
        if self._is_busy:
            return draw()
        if self._conducted is None:
            self._settle(loader)
        if self._conducted is not None:
            if is_in(loader, self.watch.loaders):
                return self._next_probe(loader)
            if self._num_drawn.get(id(loader)):
                raise StopIteration  # validation and the like: one batch lets the body go on
        self._asked = loader
        batch = draw()
        self._num_drawn[id(loader)] = self._num_drawn.get(id(loader), 0) + 1
        if self._conducted is not None:
            return batch
        self._find_models()
        self.watch.drew(loader, batch)
        if self._num_first == 0 and self.state.roots:
            self.watch.loaders, self.watch.batches = [loader], [batch]
            self._start()
            return self._next_probe(loader)
        return batch

    def on_loader_end(self, loader: Any) -> None:
        if self._conducted is None and not self._is_busy:
            self.watch.loader_ended(loader, self._num_drawn.get(id(loader), 0))

    def _settle(self, loader: Any) -> None:
        """Called before each batch: check whether a step is over, and whether enough were observed."""
        self.watch.asks(loader)
        self._take_late_baseline()
        if len(self.steps) >= self._num_first > 0 and is_in(loader, self.watch.loaders):
            self._start()

    def _find_models(self, is_training: bool = True) -> None:
        """Looked for whenever an optimizer has turned up since the last look; what the script does
        to them before it trains (loads weights, makes a schedule) is part of where it starts."""
        now = (self.state.generation, *(id(o) for o in self.state.optimizers))
        if now == self._known and self.bench.has_baseline:
            return
        modules = reachable_modules(sys._getframe(1))
        found = find_models(self.state.optimizers, modules)
        if not found:
            return
        self._known = now if is_training else ()
        self.state.clear_roots()
        for i, (name, model) in enumerate(found):
            own = name if name and name != "self" else f"{type(model).__name__}{i}"
            self.state.add_root(model, "" if len(found) == 1 else own)
        is_lazy = any(torch.nn.parameter.is_lazy(p) for _, m in found for p in m.parameters())
        if is_lazy or not is_training:
            return
        self.bench.device = model_device(found[0][1])
        if not self.steps:
            self.bench.beside = [m for _, m in find_stateful(modules)]
            self.bench.take_baseline()
            self.state.note_initial()

    def _take_late_baseline(self) -> None:
        """Lazy layers have their sizes only after the first step."""
        if self.steps and not self.bench.has_baseline:
            self._find_models()
            self.bench.take_baseline()

    def _start(self) -> None:
        """Restore the state before the first step, and run the groups."""
        self.bench.reset()
        self.subject = self._make_subject()
        self._conducted = self._begin(self.subject)
        self._advance(None)

    def _make_subject(self) -> Subject:
        half = next((str(d).removeprefix("torch.") for d in self.dtypes), None)
        watch = self.watch
        rows = num_rows(watch.batches[0]) if watch.batches else None
        return Subject(
            models=dict(self.state.roots),
            optimizers=list(self.state.optimizers),
            schedulers=list(self.state.schedulers),
            scalers=list(self.state.scalers),
            criteria=criteria(sys._getframe(1)),
            clip_norm=self.clip_norm,
            autocast_dtype=half,
            batches=list(watch.batches),
            loaders=list(watch.loaders),
            steps=list(watch.steps),
            loss_ops=watch.loss_ops,
            batch_size=rows or getattr(next(iter(watch.loaders), None), "batch_size", None),
            device=self.bench.device,
            vehicle="call" if self._is_loaderless else "loader",
            roots=user_variables(),
        )

    def _advance(self, seen: Seen | None) -> None:
        assert self._conducted is not None
        self._is_busy = True
        try:
            probe = next(self._conducted) if seen is None else self._conducted.send(seen)
        except StopIteration:
            raise Finished from None
        finally:
            self._is_busy = False
        self._probe = probe
        self._repeats = self.watch.lag
        self._set_out()

    def _set_out(self) -> None:
        # Eager: for each probe's shapes and modes a compiled model would be compiled again.
        self.attempt = self.bench.begin(self._probe, eager_stance(), OwnChecks(self.on_own_check))
        self._to_serve.clear()
        if not self._is_loaderless:
            loaders, batch = self.watch.loaders, self._probe.batch
            pairs = list(zip(loaders, [batch] if len(loaders) == 1 else batch))
            self._to_serve.extend(pair for _ in range(self.watch.per_step) for pair in pairs)

    def _next_probe(self, loader: Any) -> Any:
        for pair in self._to_serve:
            if pair[0] is loader:
                self._to_serve.remove(pair)
                return pair[1]
        self._end_attempt()
        return self._next_probe(loader)

    def _end_attempt(self) -> None:
        attempt, self.attempt = self.attempt, None
        assert attempt is not None
        if self._repeats:  # a loop that fetches ahead has run the batch before this one
            self._repeats -= 1
            attempt.finish()
            self.bench.reset()
            self._set_out()
            return
        if attempt.seen.loss is None and attempt.seen.error is None:
            attempt.seen.error = "the loop went on to the next batch without a backward pass"
        self._advance(self.bench.end(attempt))

    def ended(self) -> Seen | None:
        """Called if the script ends normally during a probe: use the result so far."""
        attempt, self.attempt = self.attempt, None
        if attempt is None or attempt.seen.loss is None or self._repeats:
            return None
        return attempt.finish()

    def raised(self, error: BaseException, where: str) -> Seen | None:
        """Called if the script raises in the current probe."""
        attempt, self.attempt = self.attempt, None
        if attempt is None:
            return None
        attempt.raised(error, where)
        return attempt.finish()

    def on_backward(self, loss: Tensor, call: Callable[[], Any]) -> Any:
        """Called for each backward, except those inside another one (checkpointed layers)."""
        if self._in_backward or self._is_busy:
            return call()
        self._in_backward = True
        try:
            return self._backward(loss, call)
        finally:
            self._in_backward = False

    def _backward(self, loss: Tensor, call: Callable[[], Any]) -> Any:
        self.thread = threading.get_ident()
        self.num_backward += 1
        raw, scale = loss, 1.0
        if self._raw is not None and self._raw[2] is loss:
            raw, scale = self._raw[1], float(self._raw[0].get_scale())
        attempt = self.attempt
        if attempt is not None:
            attempt.saw_loss(raw, scale)
        elif self._conducted is None:
            self._find_models()
            self.watch.saw_backward(raw)
            self._take_late_baseline()
        with autocast_off(self.bench.device):
            result = call()
        if attempt is not None:
            if attempt.probe.scale is not None and scale == 1.0:
                scale = attempt.probe.scale
            attempt.saw_gradients(scale)
        elif self._conducted is None:
            self.watch.saw_gradients(scale)
        return result

    def on_optimizer(self, optimizer: Optimizer) -> None:
        if self._is_busy:
            return  # a copy that a group has made
        self.num_optimizers += 1
        self.state.add_optimizer(optimizer)
        if not self.steps and self._conducted is None:
            self._find_models(is_training=False)

    def on_optimizer_step(
        self, optimizer: Optimizer, closure: Any, call: Callable[[Any], Any]
    ) -> Any:
        """Run the step; for a probe that is not applied, read only its gradients."""
        if self._is_busy:
            return call(closure)
        self.state.add_optimizer(optimizer)
        attempt = self.attempt
        if attempt is None:
            self.watch.iteration.num_steps += 1
            result = call(closure)
        elif attempt.probe.apply:
            attempt.saw_step(optimizer)
            result = call(closure)
            attempt.stepped()
        else:
            if closure is not None:
                with torch.enable_grad():
                    closure()
            attempt.saw_step(optimizer)
            optimizer._opt_called = True  # type: ignore[attr-defined]
            result = None
        if self._conducted is None and self.watch.has_kept_batches:
            raise KeptBatches
        if self.watch.is_loaderless:
            self._loaderless_step()
        return result

    def on_scheduler(self, scheduler: Any) -> None:
        if not self._is_busy:
            self.state.add_scheduler(scheduler)

    def on_scheduler_step(self, scheduler: Any, call: Callable[[], Any]) -> Any:
        self.on_scheduler(scheduler)
        if self.attempt is None:
            return call()
        return step_schedule(call) if self.moves else None

    def on_scale(self, scaler: Any, raw: Tensor, scaled: Tensor) -> None:
        self.state.add_scaler(scaler)
        self._raw = (scaler, raw, scaled) if scaler.is_enabled() else None

    def before_scaler_step(self) -> None:
        if self.attempt is None:
            self.watch.iteration.num_steps += 1  # also where the scaler leaves the step out

    def on_own_check(self, value: Tensor) -> None:
        """Called if the loop itself reads a bad number, since it may then skip the backward."""
        if self.attempt is None or self._in_backward or not value.requires_grad:
            return
        if self.attempt.seen.loss is None:
            self.attempt.saw_loss(value)

    def _loaderless_step(self) -> None:
        """There is no batch, so a probe can change only the model's arguments."""
        if not self._is_loaderless:
            self._is_loaderless = True
            self.on_loaderless()
        if self.attempt is not None:
            self._end_attempt()
            return
        self.watch.close_loaderless(self._call)
        reason = self.why_unprobed()
        if not reason and len(self.steps) > self._num_first:
            self._start()
        if reason and len(self.steps) > max(self._num_first, _PATIENCE):
            raise Unprobed

    def why_unprobed(self) -> str:
        """The reason why nothing in a loop without a loader can be changed, else ""."""
        return no_change(self.state, self.watch.batches) if self._is_loaderless else ""

    def on_model_call(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of the model in a loop without a loader: its own, or a probe's."""
        roots = list(self.state.roots.values())
        if len(roots) != 1 or getattr(module, "_orig_mod", module) is not roots[0]:
            return args, kwargs
        if self.attempt is not None:
            args, kwargs = self.attempt.probe.batch
        elif self._conducted is None:
            self._call = (args, kwargs)
        return args, kwargs
