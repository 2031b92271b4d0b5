"""Runs a training given in parts (`build`): calls loss, backward and step itself."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UsageError
from ...locate.frames import is_user_file
from ...runtime.rows import num_rows
from ...runtime.state import TrainState
from ..probes import Probe, Seen, Step, Subject
from ..target import Built
from .casts import autocast_off, noting_autocast
from .probe_runner import Attempt, Bench, step_schedule

__all__ = ["BuildRunner", "error_place", "model_device"]

_FIRST_BATCHES = 3


class BuildRunner:
    """Runs probes on a training that was built by a function."""

    def __init__(
        self,
        built: Built,
        label: str,
        seed: int = 0,
        rebuild: Callable[[], dict[str, torch.nn.Module]] | None = None,
    ) -> None:
        self._built = built
        self._label = label
        state = TrainState()
        state.add_root(built.model, "")
        for optimizer in built.optimizers:
            state.add_optimizer(optimizer)
        if built.scheduler is not None:
            state.add_scheduler(built.scheduler)
        if built.scaler is not None:
            state.add_scaler(built.scaler)
        self.state = state
        self.bench = Bench(state, model_device(built.model))
        self.bench.functions = [built.loss_fn]
        self._seed = seed
        self._rebuild = rebuild
        self.first_error: Seen | None = None
        """What the first real step raised, if it did."""
        self.loader_error: Seen | None = None
        """What the loader raised among the first batches."""

    def prepare(self) -> Subject:
        """Run the first steps, restore the state, and make the Subject."""
        torch.manual_seed(self._seed)
        built, state = self._built, self.state
        batches = self._first_batches()
        if batches:
            self._materialize(batches[0])
        self.bench.take_baseline()
        state.note_initial()
        dtypes: set[torch.dtype] = set()
        steps: list[Step] = []
        loss_ops: tuple[str, ...] = ()
        with noting_autocast(dtypes):
            for i, batch in enumerate(batches):
                seen = self.run(Probe(batch, f"step {i}", apply=True, keep=True))
                if seen.error is not None:
                    self.first_error = seen
                    break
                steps.append(Step(seen.loss, seen.grad_norm, seen.lrs))
                loss_ops = loss_ops or seen.loss_ops
        self.bench.reset()
        half = next((str(d).removeprefix("torch.") for d in dtypes), None)
        return Subject(
            models=dict(state.roots),
            optimizers=list(state.optimizers),
            schedulers=list(state.schedulers),
            scalers=list(state.scalers),
            criteria=_criteria(built.loss_fn),
            clip_norm=built.clip_norm,
            autocast_dtype=half,
            batches=batches,
            loaders=[built.loader],
            steps=steps,
            loss_ops=loss_ops,
            batch_size=_batch_size(batches, built.loader),
            device=self.bench.device,
            source=self._label,
            vehicle="build",
            roots={"loss_fn": built.loss_fn},
            rebuild=self._rebuild,
            seed=self._seed,
        )

    def run(self, probe: Probe) -> Seen:
        """One probe."""
        attempt = self.bench.begin(probe)
        try:
            with _quiet():
                self._step(attempt)
        except Exception as e:
            attempt.raised(e, error_place(e))
        return self.bench.end(attempt)

    def _first_batches(self) -> list[Any]:
        """The first batches; if the loader raises, those before it."""
        batches: list[Any] = []
        try:
            for batch in itertools.islice(iter(self._built.loader), _FIRST_BATCHES):
                batches.append(batch)
        except Exception as e:
            text = f"{type(e).__name__}: {str(e).partition(chr(10))[0]}"
            self.loader_error = Seen("loader", error=text, error_at=error_place(e))
            if not batches:
                self.first_error = self.loader_error
            return batches
        if not batches:
            raise UsageError(f"{self._label}: the loader is empty; expected at least one batch")
        return batches

    def _materialize(self, batch: Any) -> None:
        """Lazy layers get their sizes from a first batch; there is no state before that."""
        lazy = torch.nn.parameter.is_lazy
        if any(lazy(p) for p in self._built.model.parameters()):
            with torch.no_grad(), contextlib.suppress(Exception):
                self._built.loss_fn(self._built.model, batch)

    def _step(self, attempt: Attempt) -> None:
        built = self._built
        self.bench.clear_gradients()  # a step that follows another one begins without its gradients
        loss = built.loss_fn(built.model, attempt.probe.batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = (
                f"a tensor of shape {tuple(loss.shape)}"
                if isinstance(loss, Tensor)
                else repr(type(loss).__name__)
            )
            raise UsageError(f"loss_fn must return a tensor with one number, got {shape}")
        scaler = built.scaler if built.scaler is not None and built.scaler.is_enabled() else None
        if scaler is not None:
            scaler._per_optimizer_states.clear()  # unscaled already, where a step was held back
        scaled = scaler.scale(loss) if scaler is not None else loss
        scale = float(scaler.get_scale()) if scaler is not None else attempt.probe.scale or 1.0
        attempt.saw_loss(loss, scale)
        with autocast_off(self.bench.device):
            scaled.backward()
        attempt.saw_gradients(scale)
        self._clip(scaler)
        if not attempt.probe.apply:
            return
        for optimizer in built.optimizers:
            attempt.saw_step(optimizer)
            if scaler is not None:
                scaler.step(optimizer)
            else:
                optimizer.step()
            attempt.stepped()
        if scaler is not None:
            scaler.update()
        if built.scheduler is not None:
            step_schedule(built.scheduler.step)

    def _clip(self, scaler: Any) -> None:
        if self._built.clip_norm is None:
            return
        for optimizer in self._built.optimizers:
            if scaler is not None:
                scaler.unscale_(optimizer)
        params = [p for o in self._built.optimizers for g in o.param_groups for p in g["params"]]
        torch.nn.utils.clip_grad_norm_(params, self._built.clip_norm)


def _batch_size(batches: list[Any], loads: Any) -> int | None:
    rows = num_rows(batches[0]) if batches else None
    return rows or getattr(loads, "batch_size", None)


def _criteria(loss_fn: Any) -> list[nn.Module]:
    """The loss modules that a loss function uses: itself, its closure's, its module's."""
    code = getattr(loss_fn, "__code__", None)
    cells = [c.cell_contents for c in getattr(loss_fn, "__closure__", None) or () if _is_full(c)]
    named = getattr(loss_fn, "__globals__", {})
    used = [named[n] for n in (code.co_names if code is not None else ()) if n in named]
    found = [v for v in (loss_fn, *cells, *used) if isinstance(v, nn.Module)]
    return [m for m in found if "loss" in type(m).__name__.lower()]


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def model_device(model: nn.Module) -> str:
    first = next(itertools.chain(model.parameters(), model.buffers()), None)
    return first.device.type if first is not None else "cpu"


def error_place(error: BaseException) -> str:
    """The innermost line of the user's code in a traceback.

    A file below the current folder is shown relative to it.
    """
    found = ""
    tb = error.__traceback__
    while tb is not None:
        name, line = tb.tb_frame.f_code.co_filename, tb.tb_lineno
        if is_user_file(name):
            shown = name.removeprefix(os.path.join(os.getcwd(), ""))
            found = f"{shown}:{line} {linecache.getline(name, line).strip()}".rstrip()
        tb = tb.tb_next
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What torch says about our batches (a scheduler before its optimizer) is not the user's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
