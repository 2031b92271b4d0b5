"""Turns a broken step into a finding: line, cause, likelihood, and the saved batch."""

from __future__ import annotations

import math
import os
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...diagnose.evidence import BatchPart, Evidence, Weights
from ...diagnose.rank import conclude, consider
from ...numerics.health import stats
from ...records import Action, Diagnosis, Event, Incident, Location, StepRecord
from ...report.store import CAPSULE, RunFolder
from ...runtime.batches import named_tensors
from ..probes import Seen, Subject
from ..records import Finding, failed, passed, warned

__all__ = ["Prediction", "capsule_path", "diagnosis_of", "discard", "finding_of", "new_id", "saved"]

_STATUS = {"certain": "fail", "likely": "fail", "possible": "warn", "far": "far"}
_MAX_PARTS = 16


@dataclass
class Prediction:
    """One step that breaks the training."""

    group: str
    check: str
    what: str
    """The batch, the draw or the steps, as text."""
    level: str
    """certain | likely | possible | far"""
    why: str
    """The likelihood, as text."""
    seen: Seen
    """What the traced step showed."""
    batch: Any = None
    step: int = 0
    probability: float | None = None
    remedy: str = ""
    also: list[str] = field(default_factory=list)
    """Other batches that break the same line."""
    id: str = ""
    history: tuple[StepRecord, ...] = ()
    growth: float = 1.0

    @property
    def key(self) -> tuple[Any, ...]:
        """The same line and operator is the same finding."""
        where = self.seen.location
        if where is None or (where.line is None and where.op is None):
            return (self.check, self.what)
        return (where.file, where.line) if where.line is not None else (where.op, where.module)


def new_id() -> str:
    return f"predicted-{uuid.uuid4().hex[:8]}"


def capsule_path(subject: Subject, name: str) -> str:
    """The file that keeps a step; "" where none is to be kept."""
    if subject.save_dir is None:
        return ""
    return str(Path(subject.save_dir) / "incidents" / name / CAPSULE)


def discard(subject: Subject, p: Prediction) -> None:
    """Another batch breaks the same line: this one is not kept."""
    path = capsule_path(subject, p.id) if p.id else ""
    if path:
        shutil.rmtree(Path(path).parent, ignore_errors=True)


def placed(subject: Subject, seen: Seen) -> Seen:
    """An update in torch's own optimizer has no line of the user's where we have called `step()`."""
    where = seen.location
    if where is None or subject.vehicle != "build" or where.library_file is None:
        return seen
    birth = next((k for k in where.chain if k.role == "birth"), None)
    if birth is None or birth.direction != "optimizer":
        return seen
    return replace(seen, location=replace(where, file=None, line=None, source=None, function=None))


def diagnosis_of(subject: Subject, p: Prediction, usual: Sequence[Any] = ()) -> Diagnosis:
    """Determine the cause by the rules for incidents, without experiments."""
    where = p.seen.location or Location()
    evidence = Evidence(
        event=event_of(p),
        location=where,
        history=p.history,
        weights=_weights(p),
        batch=_parts(p.batch, usual),
        optimizer=_optimizer(subject),
        is_half=_is_half(subject, p.batch),
        is_complete=True,
    )
    # What only asks for an experiment says nothing yet, and here none is made.
    causes = [c for c in consider(evidence) if c.finding.fixes or not c.finding.wants]
    return conclude(causes, evidence, ())


def event_of(p: Prediction) -> Event:
    is_number = p.seen.loss is not None and math.isfinite(p.seen.loss)
    return Event(
        step=p.step,
        phase=_phase(p.seen),
        symptom="gradient" if is_number else "loss",
        loss=p.seen.loss,
        grad_norm=p.seen.grad_norm,
        lr=p.seen.lrs,
        message=f"predicted: {p.what}",
    )


def _phase(seen: Seen) -> str:
    where = seen.location
    birth = next((k for k in where.chain if k.role == "birth"), None) if where else None
    if birth is not None and birth.direction in ("backward", "optimizer"):
        return birth.direction
    return "forward" if where is not None and where.module is not None else "loss"


def _weights(p: Prediction) -> Weights:
    return Weights(growth=p.growth, first=1.0, largest=p.growth)


def _parts(batch: Any, usual: Sequence[Any]) -> tuple[BatchPart, ...]:
    if batch is None:
        return ()
    sizes: dict[str, float] = {}
    for other in usual:
        for name, t in named_tensors(other):
            if t.is_floating_point() and t.numel():
                peak = float(t.detach().abs().max())
                if math.isfinite(peak):
                    sizes[name] = max(sizes.get(name, 0.0), peak)
    named = list(named_tensors(batch))[:_MAX_PARTS]
    return tuple(BatchPart(name=n, stats=stats(t), usual=sizes.get(n)) for n, t in named)


def _optimizer(subject: Subject) -> dict[str, str]:
    for optimizer in subject.optimizers:
        for group in optimizer.param_groups:
            plain = {k: str(v) for k, v in group.items() if isinstance(v, (bool, int, float, str))}
            return {"type": type(optimizer).__name__, **plain}
    return {}


def _is_half(subject: Subject, batch: Any) -> bool:
    half = ("torch.float16", "torch.bfloat16")
    if subject.autocast_dtype is not None or any(
        str(p.dtype) in half for _, p in subject.parameters()
    ):
        return True
    return batch is not None and any(str(t.dtype) in half for _, t in named_tensors(batch))


def saved(subject: Subject, p: Prediction, diagnosis: Diagnosis) -> str:
    """The incident beside its step; where it is, or "" where it is not kept."""
    if subject.save_dir is None or not p.id or not Path(capsule_path(subject, p.id)).is_file():
        return ""
    incident = Incident(
        id=p.id,
        event=event_of(p),
        location=p.seen.location or Location(),
        diagnosis=diagnosis,
        action=Action(kind="none", detail="nothing was trained: this step is a prediction"),
    )
    RunFolder(subject.save_dir, say=lambda incident: None).save(incident)
    return str(Path(subject.saved_as or subject.save_dir) / "incidents" / p.id)


def finding_of(subject: Subject, p: Prediction, usual: Sequence[Any] = ()) -> Finding:
    """The prediction as `check` shows it."""
    diagnosis = diagnosis_of(subject, p, usual)
    p.seen = placed(subject, p.seen)
    folder = saved(subject, p, diagnosis)
    status = _STATUS[p.level]
    if status == "far":
        status = "warn" if subject.is_pedantic else "pass"
    location = p.seen.location
    also = (
        f" (so {'does' if len(p.also) == 1 else 'do'} {len(p.also)} more like it)" if p.also else ""
    )
    value = f"{p.what} gives {_short(p.seen)}{_words(p.seen)}{also}"
    action = _action(p, diagnosis)
    report = {"fail": failed, "warn": warned}.get(status)
    data = {
        "is_executed": True, "level": p.level, "probability": p.probability, "loss": _finite(p.seen.loss),
        "error": p.seen.error, "op": location.op if location else None, "saved": folder or None,
        "also": p.also[:8],
    }  # fmt: skip
    common: dict[str, Any] = {
        "subject": _place(p.seen), "why": p.why, "data": data, "location": location,
        "cause": diagnosis.cause or "",
    }  # fmt: skip
    if report is None:
        return passed(p.group, p.check, f"{value}: data that nobody would feed", **common)
    weight = 6.0 if status == "fail" else 5.5
    return report(p.group, p.check, value, action, weight=weight, **common)


def _finite(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None


def _short(seen: Seen) -> str:
    if seen.error is not None:
        return seen.error
    if seen.loss is not None and not math.isfinite(seen.loss):
        return f"loss {seen.loss}"
    return "weights that are not finite" if _is_update(seen) else "gradients that are not finite"


def _is_update(seen: Seen) -> bool:
    """Born in the optimizer's step."""
    chain = seen.location.chain if seen.location is not None else ()
    return any(k.direction == "optimizer" for k in chain if k.role == "birth")


def _place(seen: Seen) -> str:
    if seen.error is not None:
        return os.path.basename(seen.error_at.partition(" ")[0])
    where = seen.location
    if where is None:
        return ""
    if where.file and where.line:
        return f"{os.path.basename(where.file)}:{where.line}"
    return where.module or ("optimizer.step()" if _is_update(seen) else "")


def _words(seen: Seen) -> str:
    where = seen.location
    if seen.error is not None or where is None or where.op is None:
        return ""
    source = f": {where.source}" if where.source else ""
    inside = f" in {where.module}" if where.module else ""
    return f", born in {where.op}{inside}{source}"


def _action(p: Prediction, diagnosis: Diagnosis) -> str:
    fix = next((f for f in diagnosis.fixes if f.status != "refuted"), None)
    text = fix.title if fix is not None else p.remedy or "make this line safe for such a batch"
    return text
