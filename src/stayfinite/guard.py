"""The guard: one object round a model and its optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .conductor.about import environment
from .conductor.checkpoints import CheckpointWatch
from .conductor.core import Core
from .conductor.journaling import RunJournal
from .conductor.limits import Limit
from .conductor.loop import LoopDriver
from .conductor.state import TrainState
from .conductor.stepper import LossFn, Outcome, Stepper
from .config import Settings
from .errors import UsageError
from .numerics.parts import listeners as part_listeners
from .observe import witness as _witness
from .observe.wires import Wires
from .records import Event, Incident
from .recover.ledger import LEDGER_NAME, Ledger
from .recover.policy import Policy
from .recover.ramp import PrecisionRamp
from .report.store import RunFolder

__all__ = ["Guard", "Outcome"]

_witness.install()


class Guard:
    """Keeps a training finite: catches the first NaN or Inf, explains it, leaves the state clean.

    Either the guard makes the step,

    >>> import torch
    >>> from stayfinite import Guard
    >>> model = torch.nn.Linear(2, 1)
    >>> guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> outcome = guard.step(lambda m, x: m(x).pow(2).mean(), torch.ones(4, 2))
    >>> outcome.applied
    True

    or an existing loop goes on as it is, with `for batch in guard(loader):`.
    """

    def __init__(
        self,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: Optimizer,
        scheduler: Any = None,
        scaler: Any = None,
        clip_norm: float | None = None,
        policy: str | Policy = "skip",
        run_dir: str | Path | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
        ramp: PrecisionRamp | None = None,
    ) -> None:
        models = _check_models(model)
        _check_optimizer(models, optimizer)
        if clip_norm is not None and not clip_norm > 0:
            raise UsageError(f"`clip_norm` must be above 0, got {clip_norm!r}")
        if ramp is not None and scaler is None:
            scaler = ramp.scaler
        self.state = TrainState()
        for name, module in models.items():
            self.state.add_root(module, name)
        self.state.add_optimizer(optimizer)
        self.state.schedulers += [scheduler] if scheduler is not None else []
        self.state.scalers += [scaler] if scaler is not None else []
        self.optimizer = optimizer
        self.core = Core(self.state, _settings(settings), Policy.parse(policy))
        self.folder = RunFolder(run_dir)
        self.core.on_incident = self.folder.save
        if run_dir is not None:
            self.core.snapshot_folder = Path(run_dir) / "snapshots"
            self.core.recovery.ledger = Ledger(Path(run_dir) / LEDGER_NAME)
            self.core.journal = RunJournal(run_dir, self.state, environment())
            # A script that ends without `close` still gets its last lines.
            weakref.finalize(self, self.core.journal.close)
        self._stepper = Stepper(
            self.core, next(iter(models.values())), optimizer, scheduler, scaler, clip_norm
        )
        self._driver: LoopDriver | None = None
        self._wires: Wires | None = None
        self._checkpoints = CheckpointWatch(self.core)
        part_listeners.add(self.core.recovery)
        if ramp is not None:
            self.core.recovery.follow(ramp)

    @property
    def incidents(self) -> list[Incident]:
        """Every incident so far, oldest first."""
        return self.core.incidents

    @property
    def warnings(self) -> list[Event]:
        """What was worth a warning so far: spikes, limits, a learning rate that a resume changed."""
        return list(self.core.recovery.warnings)

    @property
    def bad_parts(self) -> dict[str, int]:
        """How often `finite_mean` and `finite_sum` left each part of the loss out."""
        return dict(self.core.recovery.bad_parts)

    @property
    def ledger(self) -> Ledger:
        """Every batch that was left out or cut, and why; `ledger.jsonl` in the run folder."""
        return self.core.recovery.ledger

    def watch(self, pattern: str, *, max_abs: float, action: str = "warn") -> None:
        """Warn (or raise) when a parameter whose name matches grows beyond `max_abs`.

        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
        >>> guard.watch("*.alpha", max_abs=1.0)
        Traceback (most recent call last):
        stayfinite.errors.UsageError: watch('*.alpha') matches no parameter; there are: weight, bias
        """
        limit = Limit(pattern, max_abs, action)
        if not limit.matches(self.core):
            names = [n for n, _ in self.state.parameters()]
            shown = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
            raise UsageError(f"watch({pattern!r}) matches no parameter; there are: {shown}")
        self.core.recovery.limits.append(limit)

    def track(self, name: str, what: Any) -> None:
        """Take something else along: it is checked, and goes back with a rollback.

        `what` is a module (a running average, a teacher) or has `state_dict` and `load_state_dict`.
        `torch.optim.swa_utils.AveragedModel` is found by itself. Call it before the first step.
        """
        if isinstance(what, nn.Module):
            self.state.averages[name] = what
        elif hasattr(what, "state_dict") and hasattr(what, "load_state_dict"):
            self.state.others[name] = what
        else:
            raise UsageError(
                f"`what` must be a module or have state_dict and load_state_dict, "
                f"got {type(what).__name__}"
            )

    def check(self) -> list[str]:
        """Names of all that is not finite now: parameters, buffers, optimizer state, averages.

        Good to call before an epoch; what was so from the start by design (a mask) is left out.
        """
        return [f"{kind} {name}" for kind, name, _ in self.state.bad_state()]

    @property
    def replaying(self) -> bool:
        """True while the loop is handed a batch for the second time; skip logging if you like."""
        return self._driver is not None and self._driver.is_replaying

    def step(self, loss_fn: LossFn, batch: Any) -> Outcome:
        """One step: zero_grad, forward, backward, check, and apply it unless it went bad.

        `loss_fn(model, batch)` returns the scalar loss. With `scheduler` given it advances after
        each applied step, unless your loop advances it itself.
        """
        return self._stepper.step(loss_fn, batch)

    def log(self, **parts: Any) -> None:
        """Parts of this step's loss, for the journal: `guard.log(text=text_loss, image=image_loss)`.

        Call it before the step is applied; tensors are kept by reference and read later.
        """
        if self.core.journal is not None and not self.replaying:
            self.core.journal.note_parts(parts)

    def __call__(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader's batches, for an existing loop that makes its own steps."""
        if isinstance(loader, nn.Module) or not hasattr(loader, "__iter__"):
            raise UsageError(
                f"guard(...) takes a loader or another iterable of batches, got {type(loader).__name__}"
            )
        return self._stream(loader)

    def _stream(self, loader: Iterable[Any]) -> Iterator[Any]:
        driver = self._listen()
        stream = driver.stream(loader, iter(loader))
        for batch in stream:
            yield batch
            break
        else:
            if iter(loader) is loader:
                raise UsageError(
                    "the loader gave no batch: it is an iterator that is already exhausted; "
                    "pass the loader itself, not iter(loader)"
                )
        yield from stream

    def _listen(self) -> LoopDriver:
        if self._driver is None:
            self._driver = LoopDriver(self.core, counts_every_batch=True)
            self._wires = Wires(self._driver, with_loaders=False)
            self._wires.watch_optimizer(self.optimizer)
        return self._driver

    def close(self) -> None:
        """A last deep check; then every wire and hook is taken out."""
        try:
            if self._driver is not None:
                self._driver.abandon()
            else:
                self._stepper.flush()
        finally:
            self._stepper.close()
            self._checkpoints.close()
            part_listeners.discard(self.core.recovery)
            if self._wires is not None:
                self._wires.close()
            self._driver = self._wires = None
            if self.core.journal is not None:
                self.core.journal.close()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


def _settings(value: Settings | Mapping[str, Any] | None) -> Settings:
    if value is None:
        return Settings()
    return value if isinstance(value, Settings) else Settings.from_mapping(value)


def _check_models(model: nn.Module | Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    models = dict(model) if isinstance(model, Mapping) else {"": model}
    wrong = [type(m).__name__ for m in models.values() if not isinstance(m, nn.Module)]
    if wrong or not models:
        raise UsageError(
            f"`model` must be a torch.nn.Module or a dict of them, got {', '.join(wrong) or 'nothing'}"
        )
    return models


def _check_optimizer(models: Mapping[str, nn.Module], optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer) and not hasattr(optimizer, "param_groups"):
        raise UsageError(f"`optimizer` must be a torch optimizer, got {type(optimizer).__name__}")
    held = {id(p) for m in models.values() for p in m.parameters()}
    moved = {id(p) for g in optimizer.param_groups for p in g["params"]}
    if not held & moved:
        names = ", ".join(type(m).__name__ for m in models.values())
        raise UsageError(
            f"the optimizer moves {len(moved)} parameters and {names} has {len(held)}, but they "
            "share none; build the optimizer from this model's .parameters() (after any "
            "copy, .to() or wrapping)"
        )
