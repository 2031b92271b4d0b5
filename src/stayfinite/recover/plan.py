"""A training in stages as data; each stage passes or fails."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

from ..errors import UsageError

__all__ = ["Stage", "StageReport", "StagedPlan"]

_EDGE = 0.1
_MOST = 100
"""The number of losses at either end that are enough for a median."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a training, and its conditions.

    >>> Stage(name="warmup", steps=100, loss_below=2.0, changes={"lr": 1e-4}).name
    'warmup'
    """

    name: str
    steps: int
    """How many steps it has, skipped ones included."""
    max_incidents: int = 0
    """Condition: at most as many incidents."""
    must_improve: bool = True
    """Condition: the median loss of its last tenth is below that of its first tenth."""
    loss_below: float | None = None
    """Condition: the median loss of its last tenth is below this."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Condition: the largest magnitude of parameters at its end, by name pattern: {"*.alpha": 0.1}."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that change at its start: {"lr": 1.5e-4} or {"lr": "1.5x"}. A guard sets them in the optimizer."""
    metric: str | None = None
    """Condition: the last value of a figure that the script prints or logs: "val accuracy"."""
    metric_above: float | None = None
    metric_below: float | None = None

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.steps, int) or self.steps < 1:
            raise UsageError(f"a stage needs a name and at least 1 step, got {self!r}")
        is_bounded = self.metric_above is not None or self.metric_below is not None
        if is_bounded != (self.metric is not None):
            raise UsageError(
                f"stage {self.name!r}: `metric` goes with `metric_above` or `metric_below`, "
                f"got {self.metric!r}"
            )


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """The result of a stage."""

    name: str
    status: str
    """passed | failed | running | waiting"""
    num_steps: int = 0
    num_incidents: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    metric: float | None = None
    reasons: tuple[str, ...] = ()


class StagedPlan:
    """Runs stages one after the other and stops at the first that fails.

    >>> plan = StagedPlan([Stage(name="validate", steps=3), Stage(name="scale up", steps=3)])
    >>> [plan.note(loss) is not None for loss in (3.0, 2.0, 1.0)]
    [False, False, True]
    >>> [(r.name, r.status) for r in plan.reports()]
    [('validate', 'passed'), ('scale up', 'running')]
    >>> for loss in (1.0, 2.0, 4.0):
    ...     report = plan.note(loss)
    >>> report.status, report.reasons
    ('failed', ('the loss went from 1 to 4 instead of down',))
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        if not stages:
            raise UsageError("a plan needs at least one Stage(...)")
        self.stages = tuple(stages)
        self.sees_metrics = True
        """Whether figures can be expected; False on ranks to which the script prints nothing."""
        self._done: list[StageReport] = []
        self._clear()

    def _clear(self) -> None:
        """Begin a stage."""
        stage = self.current
        self._edge = max(1, min(_MOST, round(stage.steps * _EDGE))) if stage is not None else 1
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=self._edge)
        self._num_losses = 0
        self._incidents = 0
        self._steps = 0
        self._metric: float | None = None

    @classmethod
    def from_data(cls, stages: Iterable[Mapping[str, Any]]) -> StagedPlan:
        """Make a plan from the list of mappings in a config file; unknown keys are rejected."""
        known = {f.name for f in dataclasses.fields(Stage)}
        found = []
        for i, stage in enumerate(stages):
            unknown = sorted(set(stage) - known)
            if unknown:
                raise UsageError(
                    f"stage {i}: unknown keys {', '.join(unknown)}; known: {', '.join(sorted(known))}"
                )
            found.append(Stage(**stage))
        return cls(found)

    @classmethod
    def from_file(cls, path: str | Path) -> StagedPlan:
        """Read a plan from a YAML file: a list of stages, or a mapping with the key `stages`."""
        import yaml

        try:
            text = Path(path).read_text(encoding="utf-8")
            data = yaml.safe_load(text)  # type: ignore[no-untyped-call]
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"cannot read the plan {path}: {e}") from None
        except yaml.YAMLError as e:
            raise UsageError(f"the plan {path} is no YAML: {str(e).splitlines()[0]}") from None
        stages = data.get("stages") if isinstance(data, dict) else data
        if not isinstance(stages, list) or not all(isinstance(s, dict) for s in stages):
            raise UsageError(f"the plan {path} must be a list of stages, each with name and steps")
        return cls.from_data(_numbers(s) for s in stages)

    @property
    def metrics(self) -> frozenset[str]:
        """The names of all figures in its conditions."""
        return frozenset(s.metric for s in self.stages if s.metric is not None)

    @property
    def is_at_last_step(self) -> bool:
        """Whether the next `note` ends the stage."""
        return self.current is not None and self._steps + 1 >= self.current.steps

    def note_metric(self, name: str, value: float) -> None:
        """Note a figure that the script has printed."""
        if self.current is not None and self.current.metric == name:
            self._metric = value

    @property
    def current(self) -> Stage | None:
        """The current stage; None if all are done or one has failed."""
        has_failed = bool(self._done) and self._done[-1].status == "failed"
        if has_failed or len(self._done) == len(self.stages):
            return None
        return self.stages[len(self._done)]

    @property
    def has_passed(self) -> bool:
        """Whether all stages have passed."""
        return len(self._done) == len(self.stages) and self._done[-1].status == "passed"

    def note(
        self,
        loss: float | None,
        *,
        is_healthy: bool = True,
        parameters: Iterable[tuple[str, Tensor]] = (),
    ) -> StageReport | None:
        """Note a step; returns the report of the stage if this was its last step.

        `parameters` (`model.named_parameters()`) are read only at the end of a stage.
        """
        stage = self.current
        if stage is None:
            return None
        self._steps += 1
        self._incidents += not is_healthy
        self.see(loss)
        is_over = self._steps >= stage.steps or self._incidents > stage.max_incidents
        if not is_over:
            return None
        report = self._judge(stage, parameters)
        self._done.append(report)
        self._clear()
        return report

    def see(self, loss: float | None) -> None:
        """Note a loss of the current stage."""
        if loss is None or not math.isfinite(loss):
            return
        self._num_losses += 1
        if len(self._first) < self._edge:
            self._first.append(loss)
        self._last.append(loss)

    def reports(self) -> list[StageReport]:
        """A report of every stage: passed, failed, running or waiting."""
        found = list(self._done)
        for i, stage in enumerate(self.stages[len(found) :]):
            status = "running" if i == 0 and self.current is stage else "waiting"
            steps = self._steps if status == "running" else 0
            found.append(StageReport(name=stage.name, status=status, num_steps=steps))
        return found

    def _judge(self, stage: Stage, parameters: Iterable[tuple[str, Tensor]]) -> StageReport:
        first = median(self._first) if self._first else None
        last = median(self._last) if self._last else None
        reasons = []
        if self._incidents > stage.max_incidents:
            reasons.append(f"{self._incidents} incidents, allowed are {stage.max_incidents}")
        if first is None or last is None:
            reasons.append("no finite loss was seen")
        else:
            if stage.must_improve and last >= first and self._num_losses > 1:
                reasons.append(f"the loss went from {first:.4g} to {last:.4g} instead of down")
            if stage.loss_below is not None and last >= stage.loss_below:
                reasons.append(f"the loss is {last:.4g}, wanted is below {stage.loss_below:g}")
        reasons += [*_beyond(stage, parameters), *self._of_metric(stage)]
        return StageReport(
            name=stage.name, status="failed" if reasons else "passed", num_steps=self._steps,
            num_incidents=self._incidents, first_loss=first, last_loss=last, reasons=tuple(reasons),
            metric=self._metric,
        )  # fmt: skip

    def _of_metric(self, stage: Stage) -> list[str]:
        return _of_metric(stage, self._metric) if self.sees_metrics else []

    def state_dict(self) -> dict[str, Any]:
        """The progress of the plan, as plain values."""
        return {
            "done": [dataclasses.asdict(r) for r in self._done],
            "first": list(self._first),
            "last": list(self._last),
            "num_losses": self._num_losses,
            "incidents": self._incidents,
            "steps": self._steps,
            "metric": self._metric,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the progress from `state_dict`."""
        done = [StageReport(**{**r, "reasons": tuple(r["reasons"])}) for r in state["done"]]
        names = [s.name for s in self.stages[: len(done)]]
        if [r.name for r in done] != names:
            raise UsageError(
                f"the saved plan has stages {[r.name for r in done]}, this one {names}"
            )
        self._done = done
        self._clear()
        self._first = list(state["first"])
        self._last.extend(state["last"])
        self._num_losses, self._metric = state["num_losses"], state["metric"]
        self._incidents, self._steps = state["incidents"], state["steps"]


def _numbers(value: Any) -> Any:
    """YAML reads `1e-4` as text; convert it to a number."""
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items()}
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _of_metric(stage: Stage, seen: float | None) -> list[str]:
    if stage.metric is None:
        return []
    if seen is None or not math.isfinite(seen):
        what = "was not printed or logged" if seen is None else f"is {seen}"
        return [f"{stage.metric!r} {what} in this stage"]
    found = []
    if stage.metric_above is not None and seen <= stage.metric_above:
        found.append(f"{stage.metric} is {seen:.4g}, wanted is above {stage.metric_above:g}")
    if stage.metric_below is not None and seen >= stage.metric_below:
        found.append(f"{stage.metric} is {seen:.4g}, wanted is below {stage.metric_below:g}")
    return found


def _beyond(stage: Stage, parameters: Iterable[tuple[str, Tensor]]) -> list[str]:
    if not stage.limits:
        return []
    named = list(parameters)
    found = []
    for pattern, limit in stage.limits.items():
        matching = [(n, t) for n, t in named if fnmatchcase(n, pattern) and t.numel()]
        if not matching:
            found.append(f"no parameter matches {pattern!r}: pass `parameters` to note()")
        for name, t in matching:
            size = float(t.detach().abs().max())
            if not size <= limit:
                found.append(f"{name} has reached {size:.4g}, the limit is {limit:g}")
    return found
