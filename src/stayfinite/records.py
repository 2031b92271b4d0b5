"""The records that pass between the stages: frozen, convertible to JSON and back, without torch.

StepRecord ──► Event ──► Location ──► Diagnosis ──► Action        an Incident holds all of them
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .errors import UsageError
from .incident_html import incident_html
from .plain import from_plain, to_plain

__all__ = [
    "SCHEMA_VERSION",
    "Action",
    "Candidate",
    "Culprit",
    "Diagnosis",
    "Event",
    "Experiment",
    "Fix",
    "Incident",
    "Link",
    "Location",
    "Operand",
    "Proof",
    "RankPart",
    "StepRecord",
    "TensorStats",
]

SCHEMA_VERSION = 3

_UNSET = ("is_scaler_skip", "has_bad_loss", "has_bad_grad", "bad_state", "duration_ms")


@dataclass(frozen=True, kw_only=True)
class TensorStats:
    """The health of one tensor. The statistics cover the finite values; None if there are none."""

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    num_elements: int = 0
    num_nan: int = 0
    num_posinf: int = 0
    num_neginf: int = 0
    num_zero: int = 0
    num_subnormal: int = 0
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    abs_max: float | None = None
    headroom_bits: float | None = None
    """How often the largest magnitude can double before it overflows its dtype."""
    first_bad: tuple[int, ...] | None = None
    """Index of the first non-finite element."""
    histogram: tuple[int, ...] = ()
    """The finite values in equal bins from min to max; of a sample if the tensor is large."""

    @property
    def num_nonfinite(self) -> int:
        return self.num_nan + self.num_posinf + self.num_neginf

    @property
    def is_finite(self) -> bool:
        return self.num_nonfinite == 0


@dataclass(frozen=True, kw_only=True)
class Operand:
    """One argument of an operator: a tensor with its statistics, or a plain value."""

    name: str
    stats: TensorStats | None = None
    value: str | None = None
    label: str | None = None
    """The origin of the tensor, if known: "parameter fc.weight", "batch[0]"."""
    stats_at_bad: TensorStats | None = None
    """Statistics of the argument at the positions where an elementwise result is not finite."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """One operator on the way from the birth to the symptom."""

    op: str | None
    role: str
    """birth | carrier | sentinel | source | symptom: see docs/ARCHITECTURE.md."""
    direction: str = "forward"
    """forward | backward | optimizer | none"""
    module: str | None = None
    module_type: str | None = None
    file: str | None = None
    line: int | None = None
    source: str | None = None
    function: str | None = None
    library_file: str | None = None
    library_line: int | None = None
    library_source: str | None = None
    kernel: str | None = None
    """The aten operator that ran inside a backward node."""
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Operand, ...] = ()
    facts: dict[str, float] = field(default_factory=dict)
    """Measurements at a birth: rows that are all -inf, zeros in the denominator, elements reduced, ..."""
    label: str | None = None
    """A source that is not an operator: "batch['x']", "parameter fc.weight"."""
    num_left_out: int = 0
    """The number of links before this one that were omitted to keep the chain short."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """The figures of one step."""

    step: int
    epoch: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    lr: tuple[float, ...] = ()
    scale: float | None = None
    is_applied: bool = True


@dataclass(frozen=True, kw_only=True)
class Event:
    """What was noticed: when, where in the step, and the figures of the step."""

    step: int
    phase: str
    epoch: int = 0
    kind: str = "nonfinite"
    symptom: str = "loss"
    """loss | gradient | parameter | buffer | optimizer_state | output"""
    name: str | None = None
    """The gradient, parameter, buffer or entry that is not finite."""
    value: float | None = None
    noticed_at_step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    lr: tuple[float, ...] = ()
    scale: float | None = None
    rank: int = 0
    message: str = ""
    counters: dict[str, int] = field(default_factory=dict)
    """The script's own loop counters at that time: {"epoch": 1, "it": 76}."""


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The line that set the cause, if the cause is a setting and not the line of the birth."""

    file: str
    line: int
    what: str
    """What the line does: "SGD is made here", "the learning rate is set here"."""
    source: str | None = None
    function: str | None = None


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where the first non-finite value was born."""

    op: str | None = None
    module: str | None = None
    file: str | None = None
    line: int | None = None
    source: str | None = None
    function: str | None = None
    library_file: str | None = None
    library_line: int | None = None
    library_source: str | None = None
    chain: tuple[Link, ...] = ()
    is_reproduced: bool = True
    method: str = "replay"
    """replay | time_travel | rerun | none"""
    note: str = ""
    culprit: Culprit | None = None
    """For a setting, a schedule, a load, a pipeline, an initialization: the line that set it."""
    first_bad: str = ""
    """The index of the first bad value, in words if the shape is clear: "sample 3, feature 8"."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One replay of the failing step with one thing changed."""

    name: str
    changed: str
    outcome: str
    """finite | nonfinite | not_run"""
    detail: str = ""
    duration_ms: float | None = None


ON_OTHER_BATCHES = "on other batches of the data set"
"""The note of a proof without steps before or after it: no batch had been seen yet."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The result of running a change of the source."""

    is_step_finite: bool = False
    """Whether the failed step is finite with the change."""
    num_healthy: int = 0
    """The number of earlier healthy steps that were computed both with and without it."""
    largest_change: float | None = None
    """The largest relative change of their losses; None if there were none."""
    num_after: int = 0
    """The number of later steps that were run with the change, all finite."""
    note: str = ""
    """What could not be run, or why the change was refuted."""


@dataclass(frozen=True, kw_only=True)
class Fix:
    """One concrete change."""

    title: str
    why: str
    status: str = "untried"
    """proved (exactly this diff was run, see `proof`) | refuted | untried"""
    file: str | None = None
    line: int | None = None
    before: str | None = None
    after: str | None = None
    experiment: str | None = None
    diff: str | None = None
    """The change as a patch of the user's file; None if it is only described."""
    proof: Proof | None = None
    remedy: str | None = None
    """The name of the remedy in the catalogue."""
    file_sha256: str | None = None
    """The hash of the file that the diff belongs to; it is not applied to any other version."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A cause that was considered."""

    cause: str
    confidence: float
    reason: str
    status: str = "untried"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The cause, and what to change."""

    cause: str | None = None
    confidence: float = 0.0
    summary: str = ""
    evidence: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    experiments: tuple[Experiment, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    samples: tuple[int, ...] = ()
    """The rows of the batch that fail on their own."""
    dataset_indices: tuple[int, ...] = ()
    worker: int | None = None
    """The DataLoader worker that read the batch; None if the main process did."""
    observed: dict[str, float] = field(default_factory=dict)
    """Further measurements: weights, batches, rates, replays."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """The response to an incident."""

    kind: str
    """skipped | sanitized | partial | raised | rolled_back | put_back | rebuilt | stopped | none"""
    detail: str = ""
    restored_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class RankPart:
    """The part of one rank in an incident."""

    rank: int
    role: str
    """began | sent | received | fine; `sent`: it had a bad value that only the other ranks noticed."""
    loss: float | None = None
    indices: tuple[int, ...] = ()
    """The positions of its batch in the data set, if known."""
    place: str = ""
    """Its part of the model, such as a pipeline stage."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One failure, from the symptom to the response.

    For example:

        for incident in guard.incidents:
            at = incident.location
            print(incident.event.step, at.op, f"{at.file}:{at.line}", incident.diagnosis.cause)
    """

    id: str
    event: Event
    """What was noticed, and in which step."""
    location: Location = field(default_factory=Location)
    """Where the first non-finite value was born."""
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    """Why, and what to change."""
    action: Action = field(default_factory=lambda: Action(kind="none"))
    """What was done about it."""
    history: tuple[StepRecord, ...] = ()
    """The steps before it."""
    environment: dict[str, str] = field(default_factory=dict)
    """Versions, platform and device."""
    created: str = ""
    """The time, in ISO format."""
    path: str | None = None
    """Its folder, if it was saved."""
    same_as: str | None = None
    """The id of the incident that this one repeats; it was counted and not investigated again."""
    ranks: tuple[RankPart, ...] = ()
    """With several ranks: where it began, and which ranks only received it."""
    schema: int = SCHEMA_VERSION

    KIND: ClassVar[str] = "stayfinite.incident"

    def to_json(self, indent: int | None = 2) -> str:
        """This incident as JSON text.

        >>> i = Incident(id="a", event=Event(step=3, phase="loss", value=float("inf")))
        >>> Incident.from_json(i.to_json()) == i
        True
        """
        return json.dumps({"kind": self.KIND, **to_plain(self)}, indent=indent, allow_nan=False)

    def _repr_html_(self) -> str:
        """In a notebook an incident shows itself."""
        return incident_html(self)

    @classmethod
    def from_json(cls, text: str) -> Incident:
        """The incident that `to_json` wrote; anything else is rejected with the reason."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as e:
            raise UsageError(f"not an incident: {e}") from e
        if not isinstance(data, dict) or data.get("kind") != cls.KIND:
            raise UsageError(f"not an incident: expected an object with kind {cls.KIND!r}")
        if not isinstance(data.get("schema", 0), int):
            raise UsageError(f"not an incident: `schema` must be a number, got {data['schema']!r}")
        if data.get("schema", 0) > SCHEMA_VERSION:
            raise UsageError(
                f"incident has schema {data['schema']}, this version reads up to {SCHEMA_VERSION}; "
                "upgrade stayfinite"
            )
        data.pop("kind")
        if data.get("schema", 0) < SCHEMA_VERSION:
            data = _upgraded(data)
        return from_plain(cls, data)


def _upgraded(data: dict[str, Any]) -> dict[str, Any]:
    """Read an incident of an older schema.

    Schema 1 called a fix verified if keeping the line finite helped, even if the change itself was not run. Schema 2
    had fields of a step that were never set.
    """
    rows = data.get("history")
    if isinstance(rows, list):
        new_rows = [
            {k: v for k, v in r.items() if k not in _UNSET} if isinstance(r, dict) else r
            for r in rows
        ]
        data = {**data, "history": new_rows}
    diagnosis = data.get("diagnosis")
    fixes = diagnosis.get("fixes") if isinstance(diagnosis, dict) else None
    if isinstance(diagnosis, dict) and isinstance(fixes, list):
        new = [
            {**f, "status": "untried"}
            if isinstance(f, dict) and f.get("status") == "verified"
            else f
            for f in fixes
        ]
        data = {**data, "diagnosis": {**diagnosis, "fixes": new}}
    return {**data, "schema": SCHEMA_VERSION}
