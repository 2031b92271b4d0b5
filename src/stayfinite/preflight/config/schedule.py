"""Follows schedules ahead of the training to find invalid rates."""

from __future__ import annotations

import contextlib
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

from ...records import Location
from ...runtime.undo import attributes, entries
from ..probes import Subject
from ..records import Finding, failed, passed, warned
from .formula import line_of

__all__ = ["judge_schedule", "num_batches"]

_GROUP = "config"
_CHECK = "config/schedule"
_SCHEDULE_STEPS = 2000
_SOON = 10
"""Epochs within which a training is taken to be still under way."""


def num_batches(subject: Subject) -> int | None:
    """The number of batches per epoch, if a loader has a length."""
    for loader in subject.loaders:
        with contextlib.suppress(TypeError, NotImplementedError, AttributeError):
            return len(loader)
    return None


def judge_schedule(scheduler: Any, epoch: int | None) -> Finding:
    """Judge the rates of the next steps; `epoch`: the number of batches in one.

    A rate below 0, or no real number, is what a formula gives behind its last step: that counts only
    while the first epoch is under way, since nobody knows how many there will be.
    """
    rates, error = _ahead(scheduler)
    kind = type(scheduler).__name__
    bad = next((i for i, r in enumerate(rates) if not _is_rate(r)), None)
    if bad is None and error:
        bad = len(rates)
    if bad is not None:
        shown = f"it raises {error}" if error else f"the learning rate is {_shown(rates[bad])}"
        is_over = bad < len(rates) and (isinstance(rates[bad], complex) or rates[bad] < 0)
        if is_over and (epoch is None or bad > epoch):
            text = f"{_shown(rates[bad])} after {bad} steps: the training has to be over by then"
            return passed(_GROUP, _CHECK, text, subject=kind, data={"step": bad})
        report = failed if epoch is None or bad <= _SOON * epoch else warned
        return report(
            _GROUP,
            _CHECK,
            f"{shown} after {bad} steps",
            "mend the schedule's formula at this step",
            subject=kind,
            weight=9,
            why=f"the schedule was followed: step {bad} comes for certain",
            data={"step": bad, "is_executed": True, "level": "certain"},
            location=_formula(scheduler, bad),
            cause="bad_schedule",
        )
    if not any(rates):
        return failed(
            _GROUP,
            _CHECK,
            f"the learning rate is 0 for {len(rates)} steps",
            "let the schedule start above 0, or warm up",
            subject=kind,
            weight=8,
        )
    text = f"{_shown(rates[0])}, at most {_shown(max(rates))} in {len(rates)} steps"
    return passed(_GROUP, _CHECK, text, subject=kind)


def _is_rate(rate: Any) -> bool:
    return not isinstance(rate, complex) and math.isfinite(rate) and rate >= 0


def _shown(rate: Any) -> str:
    return f"{rate:.3g}" if isinstance(rate, complex) else f"{rate:g}"


def _formula(scheduler: Any, bad: int) -> Location:
    """The line of the user's own formula that gives the bad rate, or where the formula begins."""
    found: list[Location | None] = []

    def watched(step: int) -> None:
        if step == bad:
            found.append(line_of(scheduler.step, lambda rate: not _is_rate(rate)))
        else:
            scheduler.step()

    _ahead(scheduler, bad, watched)
    if found and found[0] is not None:
        return found[0]
    for function in getattr(scheduler, "lr_lambdas", ()):
        code = getattr(function, "__code__", None)
        if code is not None:
            source = ""
            with contextlib.suppress(OSError, TypeError):
                source = inspect.getsourcelines(function)[0][0].strip()
            return Location(
                file=code.co_filename, line=code.co_firstlineno, source=source, method="none"
            )
    return Location(method="none", note="the schedule's own formula")


def _ahead(
    scheduler: Any, most: int = _SCHEDULE_STEPS, step: Callable[[int], object] | None = None
) -> tuple[list[Any], str]:
    """The rates of the next steps (the worst over the groups), and what ended it early."""
    optimizer = scheduler.optimizer
    undos = [attributes(scheduler)()]
    undos += [entries(g, skip=("params",))() for g in optimizer.param_groups]
    count = getattr(optimizer, "_step_count", None)
    rates = [_worst(optimizer)]
    error = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for i in range(1, most + 1):
                scheduler.step() if step is None else step(i)
                rates.append(_worst(optimizer))
    except (ArithmeticError, IndexError, KeyError, TypeError) as e:
        error = f"{type(e).__name__}: {e}"
    except ValueError as e:
        if "domain" in str(e):
            error = f"ValueError: {e}"
        # else a schedule of fixed length (OneCycleLR) is through
    finally:
        for undo in undos:
            with contextlib.suppress(Exception):
                undo()
        if count is not None:
            optimizer._step_count = count
    return rates, error


def _worst(optimizer: Any) -> Any:
    rates: list[Any] = [r if isinstance(r, complex) else float(r) for r in _rates(optimizer)]
    bad = [r for r in rates if not _is_rate(r)]
    return bad[0] if bad else max(rates)


def _rates(optimizer: Any) -> list[Any]:
    return [g["lr"] for g in optimizer.param_groups]
