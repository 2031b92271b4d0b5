"""Runs a staged plan: judges every step, and changes settings of the live optimizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ...errors import StageFailedError, UsageError
from ...records import Event
from ...recover.atomic import atomic_path
from ...recover.plan import Stage, StagedPlan, StageReport
from ..host import Warns
from ..ranks.agreement import Ranks
from ..state import TrainState

__all__ = ["PLAN_FILE", "PlanRun", "Planned"]

PLAN_FILE = "plan.json"
_LIVE = ("weight_decay", "momentum", "betas", "eps", "dampening", "alpha")
"""Settings that an optimizer reads in each step, besides the learning rate."""
_READ_EVERY = 64


class Planned(Protocol):
    """The parts of the training that the plan uses."""

    state: TrainState
    num_applied: int
    ranks: Ranks

    @property
    def history(self) -> Any: ...

    @property
    def monitor(self) -> Warns: ...

    @property
    def replay(self) -> Any: ...


class PlanRun:
    """Notifies a plan of each step, and applies the changes of its stages.

    Losses are kept by reference and read together, every 64 steps and at the end of a stage.
    """

    def __init__(self, plan: StagedPlan, host: Planned, say: Callable[[str], None]) -> None:
        self.plan = plan
        self._host = host
        self._say = say
        self._unread: list[Any] = []
        self._last_row: Any = None
        self._targets: dict[str, float] = {}
        """Rates that were given as a factor, so that a resume does not apply the factor twice."""
        self._is_set = False
        self._path: Path | None = None
        self._is_alone = True
        self.on_close: list[Callable[[], None]] = []

    def keep_in(self, folder: Path) -> None:
        """The file with the plan's progress; an existing one is continued."""
        self._path = folder / PLAN_FILE
        if not self._path.is_file():
            return
        try:
            saved = json.loads(self._path.read_text(encoding="utf-8"))
            self.plan.load_state_dict(saved["plan"])
            self._targets = {str(k): float(v) for k, v in saved["targets"].items()}
        except UsageError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise UsageError(
                f"{self._path} is not the progress of this plan ({type(e).__name__}: {e})\n"
                "try: another run folder, or delete the file to begin anew"
            ) from None
        stage = self.plan.current
        if stage is not None:
            self._say(f"the plan continues in stage {stage.name!r}")

    def note_applied(self) -> None:
        """Note an applied step. Its loss is not in the history yet, but that of the step before is."""
        stage = self.plan.current
        if stage is None:
            return
        if not self._is_set:
            ranks = self._host.ranks
            self._is_alone = ranks.is_first or not ranks.has_others
            self.plan.sees_metrics = self._is_alone
            self._begin(stage)
        history = self._host.history
        row = history[-1] if history else None
        if row is not None and row is not self._last_row:
            self._unread.append(row[2])
        self._last_row = row
        if len(self._unread) >= _READ_EVERY or self.plan.is_at_last_step:
            self._read()
        self._judge(is_healthy=True)

    def note_incident(self) -> None:
        """Note an incident."""
        if self.plan.current is not None:
            self._read()
            self._judge(is_healthy=False)

    def note_metric(self, name: str, value: float) -> None:
        """Note a figure that the script printed, except in replays."""
        if self._host.replay is None:
            self.plan.note_metric(name, value)

    def _read(self) -> None:
        for loss in self._unread:
            value = loss.item() if isinstance(loss, Tensor) and loss.numel() == 1 else loss
            self.plan.see(value if isinstance(value, (int, float)) else None)
        self._unread.clear()

    def _judge(self, is_healthy: bool) -> None:
        parameters = self._host.state.parameters()
        report = self.plan.note(None, is_healthy=is_healthy, parameters=parameters)
        if report is None:
            return
        self._unread.clear()
        self._report(report)
        if self._host.ranks.any(report.status == "failed"):  # all ranks are at the same step
            self._save()
            raise StageFailedError(_farewell(report))
        stage = self.plan.current
        if stage is not None:
            self._begin(stage)
        else:
            self._say("the plan is complete: every stage has passed")
        self._save()

    def _report(self, report: StageReport) -> None:
        seen = [f"{report.num_steps} steps"]
        if report.first_loss is not None and report.last_loss is not None:
            seen.append(f"loss {report.first_loss:.4g} to {report.last_loss:.4g}")
        if report.metric is not None:
            seen.append(f"metric {report.metric:.4g}")
        why = f": {'; '.join(report.reasons)}" if report.reasons else f" ({', '.join(seen)})"
        self._warn(f"stage {report.name!r} has {report.status}{why}", report.name)

    def _warn(self, text: str, name: str) -> None:
        """Write a message to the journal and the terminal."""
        step = self._host.num_applied
        event = Event(
            step=step, phase="optimizer", kind="plan", symptom="plan", name=name, message=text
        )
        self._host.monitor.warn(event, is_printed=False)
        if self._is_alone:
            self._say(f"step {step}: {text}")

    def _save(self) -> None:
        if self._path is not None and self._is_alone:
            state = {"plan": self.plan.state_dict(), "targets": self._targets}
            with atomic_path(self._path) as part:
                part.write_text(json.dumps(state), encoding="utf-8")

    def close(self) -> None:
        """End the run: write the progress of the plan."""
        self._read()
        self._save()
        while self.on_close:
            self.on_close.pop()()

    def _begin(self, stage: Stage) -> None:
        """Apply the changes of a stage to the optimizer."""
        self._is_set = True
        for key, value in stage.changes.items():
            if key in ("lr", "learning_rate"):
                done = self._set_rate(stage, value)
            elif key in _LIVE:
                done = self._set_group(key, value)
            else:
                done = (
                    f"{key} cannot be changed while it runs: save, and start again with "
                    f"{key} = {value}"
                )
            self._warn(f"stage {stage.name!r} begins: {done}", stage.name)

    def _set_rate(self, stage: Stage, value: Any) -> str:
        """Scale all rates, including the base rates of schedules."""
        state = self._host.state
        peaks = [_peak(g) for o in state.optimizers for g in o.param_groups]
        now = next((p for p in peaks if p), None)
        if now is None:
            return "no learning rate was found to change"
        wanted = self._targets.get(stage.name)
        if wanted is None:
            text = str(value)
            wanted = now * float(text[:-1]) if text.endswith("x") else float(value)
            self._targets[stage.name] = wanted
        state.scale_lrs(wanted / now)
        return f"the learning rate is {wanted:.4g} (was {now:.4g})" + (
            ", under the schedule that the script has" if state.schedulers else ""
        )

    def _set_group(self, key: str, value: Any) -> str:
        new = tuple(value) if isinstance(value, list) else value
        groups = [g for o in self._host.state.optimizers for g in o.param_groups if key in g]
        if not groups:
            return f"no optimizer here has {key}"
        before = groups[0][key]
        for group in groups:
            group[key] = new
        return f"{key} is {new} (was {before})"


def _peak(group: dict[str, Any]) -> float:
    """The base rate of a schedule; without a schedule, the current rate."""
    value = next((group[k] for k in ("max_lr", "initial_lr", "lr") if k in group), 0.0)
    return float(value)


def _farewell(report: StageReport) -> str:
    return (
        f"stage {report.name!r} of the plan has failed after {report.num_steps} steps: "
        f"{'; '.join(report.reasons)}\n"
        "  try: change what the reasons name, and start this stage again (the plan's progress is in "
        f"{PLAN_FILE} of the run folder)"
    )
