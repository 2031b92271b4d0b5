"""The records that pass between the stages: frozen, JSON both ways, without torch.

StepRecord ──► Event ──► Location ──► Diagnosis ──► Action        all of it together: Incident
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

SCHEMA_VERSION = 2

PHASES = ("data", "forward", "loss", "backward", "parameter", "optimizer", "checkpoint", "resume")


@dataclass(frozen=True, kw_only=True)
class TensorStats:
    """The health of one tensor. Statistics are of the finite part; None where there is none."""

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
    """How many times the largest magnitude can still double before it overflows its dtype."""
    first_bad: tuple[int, ...] | None = None
    """Index of the first non-finite element."""
    histogram: tuple[int, ...] = ()
    """The finite part in equal bins from min to max; of a sample where the tensor is large."""

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
    """Where the tensor comes from, when that is known: "parameter fc.weight", "batch[0]"."""
    stats_at_bad: TensorStats | None = None
    """The same argument at just those places where an elementwise result went bad."""


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
    """What was measured at a birth: rows all -inf, zeros in the denominator, elements reduced, ..."""
    label: str | None = None
    """A source that is no operator: "batch['x']", "parameter fc.weight"."""
    num_left_out: int = 0
    """So many links before this one were left out, to keep the chain short."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What the sentinel knows of one step."""

    step: int
    epoch: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    lr: tuple[float, ...] = ()
    scale: float | None = None
    is_applied: bool = True
    is_scaler_skip: bool = False
    has_bad_loss: bool = False
    has_bad_grad: bool = False
    bad_state: tuple[str, ...] = ()
    """Names of parameters, buffers or optimizer entries that a deep check found non-finite."""
    duration_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something was noticed: when, where in the step, and the step's figures."""

    step: int
    phase: str
    epoch: int = 0
    kind: str = "nonfinite"
    symptom: str = "loss"
    """loss | gradient | parameter | buffer | optimizer_state | output"""
    name: str | None = None
    """The gradient, parameter, buffer or entry that was seen to be bad."""
    value: float | None = None
    noticed_at_step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    lr: tuple[float, ...] = ()
    scale: float | None = None
    rank: int = 0
    message: str = ""
    counters: dict[str, int] = field(default_factory=dict)
    """By which the script counts its own loops, as they stood: {"epoch": 1, "it": 76}."""


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The line that set what is to blame, where that is a setting and not the line of the birth."""

    file: str
    line: int
    what: str
    """What happens in that line: "SGD is made here", "the learning rate is set here"."""
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
    """The index of the first bad value, with its meaning where the shape tells: "sample 3, feature 8"."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One replay of the failing step with one thing changed."""

    name: str
    changed: str
    outcome: str
    """finite | nonfinite | not_run"""
    detail: str = ""
    duration_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was seen when a change was run in place of the source as it is."""

    is_step_finite: bool = False
    """Whether the step that failed is finite with the change."""
    num_healthy: int = 0
    """Healthy steps before it that were computed both ways."""
    largest_change: float | None = None
    """The largest relative change of their losses; None where there were none."""
    num_after: int = 0
    """Steps behind it that were run with the change, all finite."""
    note: str = ""
    """What could not be run, or why it was refuted."""


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
    """The change as a patch of the user's own file; None where it is only described."""
    proof: Proof | None = None
    remedy: str | None = None
    """Its name in the catalogue of remedies."""
    file_sha256: str | None = None
    """The file that the diff was made of: it is applied to no other."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A cause that was considered."""

    cause: str
    confidence: float
    reason: str
    status: str = "untried"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why it happened and what to change."""

    cause: str | None = None
    confidence: float = 0.0
    summary: str = ""
    evidence: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    experiments: tuple[Experiment, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    samples: tuple[int, ...] = ()
    """Rows of the batch that are enough to fail."""
    dataset_indices: tuple[int, ...] = ()
    worker: int | None = None
    """Which of the DataLoader's processes has read the batch; None where it was the training's own."""
    observed: dict[str, float] = field(default_factory=dict)
    """Figures that were measured beside the links: weights, batches, rates, replays."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """What was done about it."""

    kind: str
    """skipped | sanitized | partial | raised | rolled_back | put_back | rebuilt | stopped | none"""
    detail: str = ""
    restored_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class RankPart:
    """What one rank of a training had to do with an incident."""

    rank: int
    role: str
    """began | sent | received | fine: `sent` is a bad value of its own that only the others noticed."""
    loss: float | None = None
    indices: tuple[int, ...] = ()
    """Of its batch in the data set, where they are known."""
    place: str = ""
    """Its part of the model, where that has a name: the stage of a pipeline."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One failure, from the first sign to what was done about it."""

    id: str
    event: Event
    location: Location = field(default_factory=Location)
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    action: Action = field(default_factory=lambda: Action(kind="none"))
    history: tuple[StepRecord, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    created: str = ""
    path: str | None = None
    same_as: str | None = None
    """The id of the incident that this one repeats: it was counted, not investigated again."""
    ranks: tuple[RankPart, ...] = ()
    """Of a training on several ranks: who began and who only received it."""
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
    """An incident of schema 1: its fixes were called verified when a line was kept finite, not when
    the change itself was run."""
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
