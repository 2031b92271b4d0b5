"""Decides whether skipping can help, or the state itself has diverged, and what would help then.

Adaptive policies use it. The batch is the cause unless other batches fail on the same weights, or the weights are far larger
than at the start.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from ..diagnose.evidence import Evidence
from ..diagnose.searched import describe_search
from ..diagnose.words import num
from ..recover.policy import Outlook
from ..runtime.window import Replay, ReplayResult
from .investigation import Investigation
from .laboratory import Laboratory

__all__ = ["look_ahead"]

_HUGE = 1e3
_NEVER = ("data", "checkpoint", "resume")
"""Phases in which the cause is not the state of the training."""

Ahead = Generator[Replay, ReplayResult, Evidence]


def look_ahead(investigation: Investigation, lab: Laboratory, evidence: Evidence) -> Ahead:
    """Try settings; `investigation.outlook` is set if the state has diverged. Returns the extended evidence."""
    event = evidence.event
    if event.phase in _NEVER or event.kind != "nonfinite":
        return evidence
    if any(not part.stats.is_finite for part in evidence.batch):
        return evidence
    if investigation.failure.symptom in ("scaler_skip", "learning_rate"):
        return evidence
    if "previous_batch" not in evidence.results:
        evidence = yield from _try(lab, "previous_batch", evidence)
    reason = _why_hopeless(evidence)
    if not reason:
        return evidence
    for name in ("smaller_lr", "clipped"):
        if name not in evidence.results and not _has_cure(evidence):
            evidence = yield from _try(lab, name, evidence)
    investigation.outlook = _outlook(reason, evidence)
    return evidence


def _try(lab: Laboratory, name: str, evidence: Evidence) -> Ahead:
    outcome = yield from lab.run(name, evidence, is_needed=True)
    return replace(evidence.with_result(name, outcome), rate=lab.rate, clip=lab.clip)


def _why_hopeless(e: Evidence) -> str:
    reasons = []
    if e.results.get("previous_batch") == "nonfinite":
        reasons.append("the batch before, which was fine, fails as well on these weights")
    w = e.weights
    if w.largest > _HUGE * max(w.first, 1.0):
        reasons.append(
            f"the largest weight is {num(w.largest)}, at the start it was {num(w.first)}"
        )
    return " and ".join(reasons)


def _has_cure(e: Evidence) -> bool:
    return any(s is not None and s.passed is not None for s in (e.rate, e.clip))


def _outlook(reason: str, e: Evidence) -> Outlook:
    rate, clip = e.rate, e.clip
    if rate is not None and rate.passed is not None and rate.before:
        return Outlook(
            reason=reason,
            lr_factor=1.0 if rate.is_limit else rate.passed / rate.before,
            lr_limit=rate.passed if rate.is_limit else None,
            change=f"a learning rate of {num(rate.passed)} instead of {num(rate.before)}",
            proof=describe_search(rate),
        )
    if clip is not None and clip.passed is not None:
        return Outlook(
            reason=reason,
            clip_norm=clip.passed,
            change=f"gradients clipped to a norm of {num(clip.passed)}",
            proof=describe_search(clip),
        )
    return Outlook(reason=reason)
