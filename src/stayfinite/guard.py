"""The guard: the public object that protects a model and its optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .config import Settings
from .errors import StayfiniteError, UsageError
from .investigate.entry import investigate
from .numerics.parts import listeners as part_listeners
from .patches import provenance as _provenance
from .patches.firewall import Firewall
from .patches.training import TrainingPatches
from .putting_back import put_back
from .records import Event, Incident
from .recover.ledger import Ledger
from .recover.plan import StagedPlan
from .recover.policy import Policy
from .recover.ramp import PrecisionRamp
from .report.inline import InlineReport
from .report.store import RunFolder
from .runtime.engine import Engine
from .runtime.given import as_list, check_models, check_optimizers, why_loop_only
from .runtime.incidents import environment
from .runtime.loop.driver import LoopDriver
from .runtime.loop.given_loader import GivenBatches
from .runtime.plan.follow import follow_plan
from .runtime.plan.run import PlanRun
from .runtime.ranks.groups import own_rank
from .runtime.run_files import keep_files
from .runtime.saves.checkpoints import CheckpointWatch
from .runtime.state import TrainState
from .runtime.step.driver import Outcome, StepDriver
from .runtime.step.parts import LossFn
from .runtime.warn.limits import Limit
from .saying import say

__all__ = ["Guard", "Outcome"]

# A checkpoint that is loaded before the guard is made is evidence too. The last guard to close removes this.
_provenance.install()


class Guard:
    """Keeps a training finite: catches the first NaN or Inf, explains it, and keeps the state clean.

    Either the guard runs the step,

    >>> import torch
    >>> from stayfinite import Guard
    >>> model = torch.nn.Linear(2, 1)
    >>> guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> outcome = guard.step(lambda m, x: m(x).pow(2).mean(), torch.ones(4, 2))
    >>> outcome.applied
    True

    or an existing loop stays as it is, with `for batch in guard(loader):`. That form also accepts a
    list of optimizers (a generator's and a discriminator's), and an optimizer over float32 copies
    of a half-precision model: one copy for each trained parameter, of the same shape.

    `model`: the module, or several by name: `{"generator": g, "discriminator": d}`.
    `scheduler`, `scaler`: the training's schedule and GradScaler, if it has them.
    `clip_norm`: clip the gradients of `guard.step` to this norm.
    `policy`: what to do about a bad step: "skip", "auto", "heal", "rollback", "sanitize", "parts",
    "raise", a ladder such as "skip:3,rollback:2:lr=0.5", or a `Policy`.
    `run_dir`: the folder of the journal and the incidents; None writes no files.
    `settings`: a `Settings`, or a mapping with some of its fields.
    `ramp`: a `PrecisionRamp`, which moves between float32 and half precision.
    `plan`: a `StagedPlan`, or its YAML file.

    A `with` block, or `close()`, ends the protection; so does the end of the last reference to it.
    """

    def __init__(
        self,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        scheduler: Any = None,
        scaler: Any = None,
        clip_norm: float | None = None,
        policy: str | Policy = "skip",
        run_dir: str | Path | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
        ramp: PrecisionRamp | None = None,
        plan: StagedPlan | str | Path | None = None,
    ) -> None:
        models = check_models(model)
        optimizers = check_optimizers(models, optimizer)
        schedulers = [s for s in as_list(scheduler) if s is not None]
        if clip_norm is not None and not (isinstance(clip_norm, (int, float)) and clip_norm > 0):
            raise UsageError(f"`clip_norm` must be a number above 0, got {clip_norm!r}")
        if ramp is not None and scaler is None:
            scaler = ramp.scaler
        self._objects = (models, optimizers, schedulers, scaler)
        """Keeps the training's objects alive with the guard; everything else refers to them weakly."""
        self.state = TrainState()
        for name, module in models.items():
            self.state.add_root(module, name)
        for each in optimizers:
            self.state.add_optimizer(each)
        for each in schedulers:
            self.state.schedulers.append(each)
        if scaler is not None:
            self.state.scalers.append(scaler)
        self.optimizer = optimizers[0]
        """The first optimizer; `state.optimizers` lists all of them."""
        self._loop_only = why_loop_only(models, optimizers, schedulers)
        self.engine = Engine(self.state, _settings(settings), Policy.parse(policy), investigate)
        if run_dir is not None:
            run_dir = Path(run_dir).absolute()  # the script may change its working directory
        self.folder = RunFolder(run_dir)
        self.engine.on_incident = self.folder.save
        if run_dir is not None:
            keep_files(self.engine, run_dir, own_rank(), environment)
        self._steps = StepDriver(
            self.engine, next(iter(models.values())), optimizers[0],
            schedulers[0] if schedulers else None, scaler, clip_norm,
        )  # fmt: skip
        self.engine.step_parts = self._steps.parts
        self._loop: LoopDriver | None = None
        self._start_firewall = Firewall("the start of a guarded loop")
        # A script that ends without `close` still gets its last check, and its last lines are written.
        self._resources = _Resources(self.engine, self._steps.flush)
        self._at_end = weakref.finalize(self, self._resources.close, is_quiet=True)
        if ramp is not None:
            self.engine.recovery.follow(ramp)
        self._plan = self._follow(plan, run_dir) if plan is not None else None

    def _follow(self, plan: StagedPlan | str | Path, run_dir: str | Path | None) -> PlanRun:
        """Let the plan follow every step from now on."""
        chosen = plan if isinstance(plan, StagedPlan) else StagedPlan.from_file(plan)
        following = follow_plan(self.engine, chosen, Path(run_dir) if run_dir is not None else None)
        self._resources.add_closing(following.close)
        return following

    @property
    def plan(self) -> StagedPlan | None:
        """The plan that this training follows; its `reports()` show how each stage went."""
        return self._plan.plan if self._plan is not None else None

    @property
    def incidents(self) -> list[Incident]:
        """All incidents so far, oldest first."""
        return list(self.engine.incidents)

    @property
    def warnings(self) -> list[Event]:
        """All warnings so far: spikes, exceeded limits, a learning rate that a resume changed."""
        return list(self.engine.monitor.warnings)

    @property
    def bad_parts(self) -> dict[str, int]:
        """How often `finite_mean` and `finite_sum` dropped each part of the loss."""
        return dict(self.engine.recovery.bad_parts)

    @property
    def ledger(self) -> Ledger:
        """Every batch that was skipped or cut, and why; also `ledger.jsonl` in the run folder."""
        return self.engine.recovery.ledger

    def report(self) -> InlineReport:
        """The incidents so far, as text when printed and as HTML in a notebook."""
        return InlineReport(self.incidents, self.warnings, self.engine.num_applied)

    def watch(self, pattern: str, *, max_abs: float, action: str = "warn") -> None:
        """Warn (or raise) when a parameter whose name matches `pattern` exceeds `max_abs`.

        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
        >>> guard.watch("*.alpha", max_abs=1.0)
        Traceback (most recent call last):
        stayfinite.errors.UsageError: watch('*.alpha') matches no parameter; there are: weight, bias
        """
        limit = Limit(pattern, max_abs, action)
        if not limit.matches(self.engine.monitor):
            names = [n for n, _ in self.state.parameters()]
            shown = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
            raise UsageError(f"watch({pattern!r}) matches no parameter; there are: {shown}")
        self.engine.monitor.limits.append(limit)

    def track(self, name: str, what: Any) -> None:
        """Add another object to the training's state: it is checked, and restored by a rollback.

        `what` is a module (a running average, a teacher) or has `state_dict` and `load_state_dict`.
        `torch.optim.swa_utils.AveragedModel` is found without this. Call it before the first step.
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
        """Name everything that is not finite now: parameters, buffers, optimizer state, averages.

        Useful before an epoch. Values that were not finite from the start (a mask of -inf) are not listed.
        """
        return [f"{kind} {name}" for kind, name, _ in self.state.bad_state()]

    @property
    def replaying(self) -> bool:
        """True while a bad step is replayed; use it to skip your own logging."""
        return self.engine.replay is not None

    def step(self, loss_fn: LossFn, batch: Any) -> Outcome:
        """Run one step: zero_grad, forward, backward, check, and apply it if it is finite.

        `loss_fn(model, batch)` returns the scalar loss. The `scheduler`, if given, advances after
        each applied step, unless your loop advances it itself.
        """
        if self._loop_only is not None:
            raise UsageError(
                f"guard.step drives one optimizer and its scheduler, and here {self._loop_only}; "
                "use `for batch in guard(loader):` and let the loop make its own steps"
            )
        return self._steps.step(loss_fn, batch)

    def log(self, **parts: Any) -> None:
        """Record parts of this step's loss in the journal: `guard.log(text=text_loss, image=image_loss)`.

        Call it before the step is applied. Tensors are kept by reference and read later.
        """
        if self.engine.journal is not None and not self.replaying:
            self.engine.journal.note_parts(parts)
        if self._plan is not None:
            for name, value in parts.items():
                if isinstance(value, (int, float)):
                    self._plan.note_metric(name, float(value))

    def __call__(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Iterate over the loader's batches, in a loop that makes its own steps."""
        if isinstance(loader, nn.Module) or not hasattr(loader, "__iter__"):
            raise UsageError(
                f"guard(...) takes a loader or another iterable of batches, got {type(loader).__name__}"
            )
        driver = self._start_firewall.call(self._loop_driver)
        return GivenBatches(driver, loader, self) if driver is not None else iter(loader)

    def _loop_driver(self) -> LoopDriver:
        if self._loop is None:
            driver = LoopDriver(self.engine, counts_every_batch=True)
            patches = TrainingPatches(driver, finds_optimizers=False)
            driver.on_close = patches.close
            self._resources.add(driver.finish, patches.close)
            for optimizer in self.state.optimizers:
                patches.watch_optimizer(optimizer)
            self._loop = driver
        return self._loop

    def close(self) -> None:
        """Run a last deep check, then remove every patch."""
        if self._at_end.detach() is not None:
            self._loop = None
            self._resources.close()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class _Resources:
    """The resources of a guard. A separate object, so that a finalizer can close them after the guard is gone."""

    def __init__(self, engine: Engine, flush: Callable[[], None]) -> None:
        self._engine = engine
        self._flush = flush
        self._patches: list[Callable[[], None]] = []
        self._checkpoints: CheckpointWatch | None = None
        without = engine.settings.without
        self._has_provenance = "provenance" not in without
        if self._has_provenance:
            _provenance.install()
        if "saves" not in without:
            self._checkpoints = CheckpointWatch(engine)
        part_listeners.add(engine.recovery)

    def add(self, flush: Callable[[], None], close: Callable[[], None]) -> None:
        """Use the loop driver's `flush` from now on, and remove its patches at the end."""
        self._flush = flush
        self._patches.append(close)

    def add_closing(self, close: Callable[[], None]) -> None:
        self._patches.append(close)

    def close(self, is_quiet: bool = False) -> None:
        """Run the last check, then remove everything; `is_quiet`: print what is raised."""
        end = Firewall("the end of a guard")
        try:
            end.once(self._flush)
        except StayfiniteError as e:
            if not is_quiet:
                raise
            say(f"stayfinite: {e}")
        finally:
            end.once(put_back, *self._closings())

    def _closings(self) -> Iterator[Callable[[], object]]:
        yield from self._patches
        if self._checkpoints is not None:
            yield self._checkpoints.close
        if self._has_provenance:
            yield lambda: _provenance.remove(is_last_user=True)
        yield lambda: part_listeners.discard(self._engine.recovery)
        yield self._engine.recovery.healing.close
        yield self._engine.ranks.forget
        if self._engine.journal is not None:
            yield self._engine.journal.close


def _settings(value: Settings | Mapping[str, Any] | None) -> Settings:
    if value is None:
        return Settings()
    return value if isinstance(value, Settings) else Settings.from_mapping(value)
