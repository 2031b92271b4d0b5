"""An unmodified script's own loop as the vehicle of probes.

The first steps are watched as they are. Then everything is put back to before the first one, and
whenever the loop asks for a batch it is handed the batch of a probe.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..runtime.rows import num_rows
from ..conductor.script import find_models, variable_name
from ..runtime.state import TrainState
from .capture_patches import Listener
from .capture_turn import NOTHING, Turn, criteria, first, heads, is_in
from .layers_leaves import user_variables
from .probes import Probe, Seen, Step, Subject
from .runner import Attempt, Bench, loss_nodes, step_schedule
from .runner_build import model_device
from .runner_casts import autocast_off

__all__ = ["Captor", "Finished"]

Conducted = Generator[Probe, Seen, None]


class Finished(BaseException):
    """Everything is known: the script may end. No `except Exception` of the script stops it."""


class Captor(Listener):
    """The listener of the wires: watches first, then hands out probes."""

    def __init__(self, num_first: int, begin: Callable[[Subject], Conducted]) -> None:
        self.state = TrainState()
        self.bench = Bench(self.state)
        self.steps: list[Step] = []
        self.subject: Subject | None = None
        self.clip_norm: float | None = None
        self.dtypes: set[torch.dtype] = set()
        self.attempt: Attempt | None = None
        self.num_batches = self.num_backward = 0
        self.thread = 0
        """The thread that trains."""
        self._num_first = num_first
        self._begin = begin
        self._conducted: Conducted | None = None
        self._is_busy = False
        self._turn = Turn()
        self._aside: list[tuple[Any, Any]] = []
        self._owners: list[Any] = []
        self._batches: list[Any] = []
        self._loss_ops: tuple[str, ...] = ()
        self._to_serve: deque[tuple[Any, Any]] = deque()
        self._per_turn = 1
        self._lag = 0
        self._repeats = 0
        self._raw: tuple[Any, Tensor, Tensor] | None = None
        self._num_known = 0
        self._asked: Any = None
        """The loader that was asked last."""
        self._is_free = False
        self._call: Any = None
        self._hooks: list[Any] = []

    def start_where_it_stands(self) -> Conducted | None:
        """The script is over before its time: what can be said without another step of it."""
        if not self.state.roots:
            self._find_models()
        if not self.state.roots:
            return None
        self._is_busy = True
        self.bench.reset()
        if not self._owners:
            self._owners = [o for o, _ in self._turn.items] or [self._asked]
            self._batches += [i for _, i in self._turn.items[:1]]
        self.subject = self._make_subject()
        return self._begin(self.subject)

    def note_end(self) -> None:
        """The script is through: its last step was one, though nobody asked for another batch."""
        if self._conducted is None and self._turn.num_steps and self._turn.items:
            self._close()

    # -- batches -----------------------------------------------------------------------------------

    def stream(self, owner: Any, inner: Iterator[Any]) -> Iterator[Any]:
        """The loader's batches while watching, those of the probes afterwards."""
        if self._is_busy:
            yield from inner
            return
        num_served = 0
        while True:
            if self._conducted is None:
                self._settle(owner)
            if self._conducted is not None and is_in(owner, self._owners):
                yield self._next_probe(owner)
                continue
            if self._conducted is not None and num_served:
                return  # validation and the like: one batch is enough for the body to go on
            self._asked = owner
            item = next(inner, NOTHING)
            if item is NOTHING:
                return
            self._register(owner, item)
            num_served += 1
            if self._conducted is None and self._num_first == 0 and self.state.roots:
                self._owners = [owner]
                self._batches = [item]
                self._start()
                yield self._next_probe(owner)
                continue
            yield item

    def _register(self, owner: Any, item: Any) -> None:
        if self._conducted is not None:
            return
        self._find_models()
        self.num_batches += 1
        turn = self._turn
        if turn.num_steps and not is_in(owner, [o for o, _ in turn.items]):
            self._aside = [(o, i) for o, i in self._aside if o is not owner] + [(owner, item)]
            return
        if not turn.num_backward:
            turn.items = [(o, i) for o, i in turn.items if o is not owner]
        turn.items.append((owner, item))
        turn.num_serves += 1

    def _find_models(self) -> None:
        """Looked for whenever an optimizer has turned up since the last look."""
        if len(self.state.optimizers) == self._num_known and self.bench.has_baseline:
            return
        self._num_known = len(self.state.optimizers)
        models = find_models(self.state.optimizers)
        self.state.roots.clear()
        if len(models) == 1:
            self.state.add_root(models[0], "")
        else:
            for i, model in enumerate(models):
                self.state.add_root(model, variable_name(model) or f"{type(model).__name__}{i}")
        params = [p for m in models for p in m.parameters()]
        if not models or any(torch.nn.parameter.is_lazy(p) for p in params):
            return
        self.bench.device = model_device(models[0])
        if not self.steps:
            self.bench.take_baseline()
            self.state.note_initial()

    def _settle(self, owner: Any) -> None:
        """Before each batch: is a step over, and have enough been seen?"""
        turn = self._turn
        if turn.num_steps and is_in(owner, [o for o, _ in turn.items]):
            self._close()
        if len(self.steps) >= self._num_first > 0 and is_in(owner, self._owners):
            self._start()

    def _close(self) -> None:
        """One real step is over."""
        turn, self._turn = self._turn, Turn()
        self._turn.items, self._aside = [], []
        self._owners = [o for i, (o, _) in enumerate(turn.items) if not is_in(o, heads(turn, i))]
        per_turn = max(sum(o is self._owners[0] for o, _ in turn.items), 1)
        if not self.steps:
            self._lag = max(turn.num_serves // max(len(self._owners), 1) - per_turn, 0)
        self._per_turn = per_turn
        parts = [next(i for o, i in turn.items if o is owner) for owner in self._owners]
        self._batches.append(parts[0] if len(parts) == 1 else tuple(parts))
        loss = float(turn.losses[-1]) if turn.losses else None
        norm = float(turn.norm) if turn.norm is not None else None
        self.steps.append(Step(loss, norm, self.state.lrs(), per_turn))
        if not self.bench.has_baseline:  # lazy layers have their sizes only now
            self._find_models()
            self.bench.take_baseline()

    # -- probes ------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Enough has been seen: back to before the first step, and on to the groups."""
        self.bench.reset()
        self.subject = self._make_subject()
        self._conducted = self._begin(self.subject)
        self._advance(None)

    def _make_subject(self) -> Subject:
        half = next((str(d).removeprefix("torch.") for d in self.dtypes), None)
        return Subject(
            models=dict(self.state.roots),
            optimizers=list(self.state.optimizers),
            schedulers=list(self.state.schedulers),
            scalers=list(self.state.scalers),
            criteria=criteria(),
            clip_norm=self.clip_norm,
            autocast_dtype=half,
            batches=list(self._batches),
            loaders=list(self._owners),
            steps=list(self.steps),
            loss_ops=self._loss_ops,
            batch_size=num_rows(first(self._batches))
            or getattr(first(self._owners), "batch_size", None),
            device=self.bench.device,
            vehicle="call" if self._is_free else "loader",
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
        self._repeats = self._lag
        self._set_out()

    def _set_out(self) -> None:
        self.attempt = self.bench.begin(self._probe)
        batch = self._probe.batch
        parts = [batch] if len(self._owners) == 1 else list(batch)
        self._to_serve.clear()
        if not self._is_free:
            pairs = list(zip(self._owners, parts))
            self._to_serve.extend(pair for _ in range(self._per_turn) for pair in pairs)

    def _next_probe(self, owner: Any) -> Any:
        for pair in self._to_serve:
            if pair[0] is owner:
                self._to_serve.remove(pair)
                return pair[1]
        self._end_attempt()
        return self._next_probe(owner)

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
        """The script ended by itself while a probe was running: what that had shown by then."""
        attempt, self.attempt = self.attempt, None
        if attempt is None or attempt.seen.loss is None or self._repeats:
            return None
        return attempt.finish()

    def raised(self, error: BaseException, where: str) -> Seen | None:
        """The script did not survive the probe that is running."""
        attempt, self.attempt = self.attempt, None
        if attempt is None:
            return None
        attempt.raised(error, where)
        return attempt.finish()

    # -- what the wires tell -----------------------------------------------------------------------

    def on_backward(self, loss: Tensor, call: Callable[[], Any]) -> Any:
        self.thread = threading.get_ident()
        self.num_backward += 1
        raw, scale = loss, 1.0
        if self._raw is not None and self._raw[2] is loss:
            raw, scale = self._raw[1], float(self._raw[0].get_scale())
        attempt = self.attempt
        if attempt is not None:
            attempt.saw_loss(raw, scale)
        elif self._conducted is None:
            self._note_backward(raw)
        with autocast_off(self.bench.device):
            result = call()
        if attempt is not None:
            if attempt.probe.scale is not None and scale == 1.0:
                scale = attempt.probe.scale
            attempt.saw_gradients(scale)
        elif self._conducted is None:
            self._note_gradients(scale)
        return result

    def _note_backward(self, loss: Tensor) -> None:
        self._find_models()
        if self._aside:  # another loader's batch turns out to be trained on
            aside = self._aside
            if self._turn.num_steps:
                self._close()
            self._turn.items = aside
            self._turn.num_serves = len(aside)
            self._aside = []
        self._loss_ops = self._loss_ops or loss_nodes(loss)
        self._turn.num_backward += 1
        if loss.numel() == 1:
            self._turn.losses.append(loss.detach())

    def _note_gradients(self, scale: float) -> None:
        dense = [g for _, g in self.state.grads() if g.layout == torch.strided]
        if dense:
            self._turn.norm = torch.nn.utils.get_total_norm(dense) / scale

    def on_optimizer(self, optimizer: Optimizer) -> None:
        self.state.add_optimizer(optimizer)

    def on_optimizer_step(
        self, optimizer: Optimizer, closure: Any, call: Callable[[Any], Any]
    ) -> Any:
        self.state.add_optimizer(optimizer)
        attempt = self.attempt
        if attempt is None:
            self._turn.num_steps += 1
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
        if not self._owners and not self._turn.items:
            self._free_step()
        return result

    def on_clip(self, norm: Tensor) -> None: ...

    def on_scheduler(self, scheduler: Any) -> None:
        self.state.add_scheduler(scheduler)

    def on_scheduler_step(self, scheduler: Any, call: Callable[[], Any]) -> Any:
        self.on_scheduler(scheduler)
        if self.attempt is None:
            return call()
        return step_schedule(call) if self._moves else None

    def on_average(self, call: Callable[[], Any]) -> Any:
        return call() if self._moves else None

    @property
    def _moves(self) -> bool:
        return self.attempt is None or self.attempt.probe.apply

    def on_scale(self, scaler: Any, raw: Tensor, scaled: Tensor) -> None:
        self.state.add_scaler(scaler)
        self._raw = (scaler, raw, scaled) if scaler.is_enabled() else None

    def on_scaler_step(self, scaler: Any, optimizer: Optimizer, call: Callable[[], Any]) -> Any:
        if self.attempt is None:
            self._turn.num_steps += 1  # also where the scaler leaves the step out
        return call()

    def on_own_check(self, value: Tensor) -> None:
        """The loop looks at a number itself, and gives up before the backward."""
        if not value.requires_grad or self.attempt is None:
            return
        if self.attempt.seen.loss is None and not bool(torch.isfinite(value.detach()).all()):
            self.attempt.saw_loss(value)

    # -- loops without a loader --------------------------------------------------------------------

    def _free_step(self) -> None:
        """No batch was handed out: the model's own arguments are what a probe can change."""
        self._is_free = True
        if self.attempt is not None:
            self._end_attempt()
            return
        if self._call is not None:
            self._batches.append(self._call)
        turn, self._turn = self._turn, Turn()
        loss = float(turn.losses[-1]) if turn.losses else None
        norm = float(turn.norm) if turn.norm is not None else None
        self.steps.append(Step(loss, norm, self.state.lrs()))
        if not self._hooks and len(self.state.roots) == 1:
            root = next(iter(self.state.roots.values()))
            self._hooks = [root.register_forward_pre_hook(self._on_call, with_kwargs=True)]
        has_enough = len(self.steps) > self._num_first and self._batches
        if has_enough and len(self.state.optimizers) == 1:
            self._start()

    def _on_call(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.attempt is None:
            if torch.is_grad_enabled() and self._conducted is None:
                self._call = (args, kwargs)
            return None
        return self.attempt.probe.batch if torch.is_grad_enabled() else None
