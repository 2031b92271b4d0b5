"""The forward group: a few real steps watched layer by layer, and the first loss."""

from __future__ import annotations

import math
import os
from collections.abc import Generator
from dataclasses import replace

from ...lint import sentence_at
from ...records import Location
from ..edges.predict import Prediction, diagnosis_of
from ..layers import ask, has_scaler, is_lost
from ..probes import Checks, Probe, Seen, Subject
from ..records import Finding, failed, passed, skipped
from .gradients import judge_gradients, judge_updates
from .scale import judge_activations, judge_dead, judge_saturated
from .start import judge_loss

__all__ = ["at_location", "forward"]

GROUP = "forward"
WATCHED_BATCHES = 3
WARM_STEPS = 4
"""Real steps before a gradient of exactly zero counts: gates and heads that start at zero open."""


def forward(subject: Subject) -> Checks:
    """Check activations, the loss and gradients layer by layer."""
    if not subject.batches:
        return [skipped(GROUP, "forward/runs", "no batch was seen")]
    watched: list[Seen] = []
    for i, batch in enumerate(subject.batches[:WATCHED_BATCHES]):
        seen = yield from ask(subject, Probe(batch=batch, name=f"batch {i}", watch=True))
        if seen.error is not None:
            return [_raised(seen)]
        if not seen.is_finite:
            scale = 1.0 if has_scaler(subject) else None
            name = f"batch {i}, traced"
            traced = yield Probe(batch=batch, name=name, trace=True, scale=scale)
            return [_nonfinite(subject, seen, traced)]
        watched.append(seen)
    first = watched[0]
    found = [passed(GROUP, "forward/finite", _summary(watched))]
    found += judge_activations(first.layers)
    found += judge_dead([s.layers for s in watched])
    found += judge_saturated(first.layers)
    found += judge_loss(first)
    steps, later = yield from _warm(subject)
    found += judge_gradients(subject, watched, later or first, is_warm=later is not None)
    found += judge_updates(subject, steps)
    return found


def _warm(subject: Subject) -> Generator[Probe, Seen, tuple[list[Seen], Seen | None]]:
    """Run a few real steps, then check the layers, unless the steps broke."""
    steps: list[Seen] = []
    for i in range(min(WARM_STEPS, subject.num_steps - 1)):
        batch = subject.batches[i % len(subject.batches)]
        seen = yield Probe(batch=batch, name=f"step {i}", apply=True, keep=True)
        if seen.error is not None or is_lost(subject, seen):
            return steps, None
        if seen.is_finite:
            steps.append(seen)
    probe = Probe(batch=subject.batches[0], name="after the steps", watch=True)
    later = yield from ask(subject, probe)
    is_sound = later.error is None and later.is_finite
    return steps, later if is_sound else None


def _is_number(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def _summary(watched: list[Seen]) -> str:
    losses = ", ".join(f"{s.loss:.4g}" for s in watched if s.loss is not None)
    layers = len(watched[0].layers)
    return f"{len(watched)} batches through {layers} modules; loss {losses}"


def _raised(seen: Seen) -> Finding:
    error = seen.error or ""
    action = "repair this line; nothing can be trained before it runs"
    if "does not require grad" in error:
        action = "keep the loss attached: no .item(), .detach() or no_grad() on its way"
    where = os.path.basename(seen.error_at.partition(" ")[0])
    return failed(GROUP, "forward/runs", error, action, subject=where, weight=10)


def _nonfinite(subject: Subject, seen: Seen, traced: Seen) -> Finding:
    """The training's own batch gives a NaN or Inf, in the loss or only in the gradients."""
    location = traced.location or seen.location
    is_loss = not _is_number(seen.loss)
    check = "forward/finite" if is_loss else "gradients/finite"
    what = f"the loss is {seen.loss}" if is_loss else f"loss {seen.loss:.4g}, gradients not finite"
    place, value = at_location(location)
    broken = Prediction(
        group=GROUP, check=check, what=seen.name, level="certain", why="",
        seen=replace(seen, location=location),
    )  # fmt: skip
    diagnosis = diagnosis_of(subject, broken)
    fix = next((f.title for f in diagnosis.fixes if f.status != "refuted"), "")
    more = "`stayfinite run` explains the cause and the fix"
    return failed(
        GROUP,
        check,
        f"{what} on {seen.name}{value}",
        fix or (f"repair this operation; {more}" if place else f"{more}, and names the line"),
        subject=place,
        weight=10,
        data={
            "op": location.op if location else None,
            "is_executed": True,
            "level": broken.level,
        },
        location=location,
        cause=diagnosis.cause or "",
    )


def at_location(location: Location | None) -> tuple[str, str]:
    """Where a bad value was born: (the layer or the line, words about the operation)."""
    if location is None or (location.op is None and not location.note and not location.chain):
        return "", ""
    where = ""
    if location.file:
        where = f"{os.path.basename(location.file)}:{location.line}"
    label = next((k.label for k in location.chain if k.label), None)
    what = f"born in {location.op}" if location.op else "a value that came in"
    if not location.op and label:
        what = f"which came in with {label.replace('batch batch', 'batch')}"
    words = f", {what}" + (f" at {where}" if where else "")
    if location.source:
        words += f": {location.source}"
    if said := sentence_at(location.file, location.line):
        words += f"; {said}"
    return location.module or where or (label or ""), words
