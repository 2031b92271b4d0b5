"""Connects a plan to a training: run folder, figures, messages."""

from __future__ import annotations

from pathlib import Path

from ...patches.printed import PrintedFigures
from ...recover.plan import StagedPlan
from ...saying import say
from ..engine import Engine
from .run import PlanRun

__all__ = ["follow_plan"]


def follow_plan(engine: Engine, plan: StagedPlan, folder: Path | None) -> PlanRun:
    """Let a plan follow every step of this training until it is closed."""
    following = PlanRun(plan, engine, _say)
    if folder is not None:
        following.keep_in(folder)
    if plan.metrics and "plan" not in engine.settings.without:
        figures = PrintedFigures(plan.metrics, following.note_metric)
        following.on_close.append(figures.close)
    engine.recovery.plan = following
    engine.state.num_changes += 1
    return following


def _say(text: str) -> None:
    say(f"stayfinite: {text}")
