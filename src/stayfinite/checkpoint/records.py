"""The records of a scan: frozen, converted to JSON by `stayfinite.records.to_plain`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from ..plain import from_plain, to_plain
from ..records import TensorStats

__all__ = [
    "VERDICTS",
    "CheckpointReport",
    "DiffReport",
    "FileReport",
    "LayerDiff",
    "LearningRates",
    "RunTimeline",
    "ScanReport",
    "TensorDiff",
    "TensorFinding",
    "TensorReport",
    "TimelineEntry",
    "worst",
]

VERDICTS = ("healthy", "suspicious", "corrupt", "unreadable", "hostile")
"""From best to worst. The verdict of a file is that of its worst finding."""


def worst(verdicts: list[str]) -> str:
    """The worst of several verdicts.

    >>> worst(["healthy", "corrupt", "suspicious"])
    'corrupt'
    """
    return max(verdicts, key=VERDICTS.index, default="healthy")


@dataclass(frozen=True, kw_only=True)
class TensorReport:
    """One tensor of a file."""

    name: str
    role: str
    """weights | buffer | batchnorm | optimizer | ema | scheduler | scaler | rng | metric | data | other"""
    stats: TensorStats
    aliases: tuple[str, ...] = ()
    """Other names of the same bytes (tied weights)."""


@dataclass(frozen=True, kw_only=True)
class TensorFinding:
    """One problem of a file, with its tensor if there is one."""

    code: str
    message: str
    severity: str = "corrupt"
    """suspicious | corrupt | hostile | unreadable"""
    tensor: str | None = None
    role: str | None = None
    stats: TensorStats | None = None
    action: str | None = None
    """The advice."""


@dataclass(frozen=True, kw_only=True)
class LearningRates:
    """The learning rates that a checkpoint would resume with."""

    optimizer: tuple[float, ...] = ()
    """`lr` of each parameter group."""
    initial: tuple[float, ...] = ()
    """`initial_lr` of each parameter group that has one."""
    peak: tuple[float, ...] = ()
    """`max_lr` of each parameter group that has one (OneCycleLR, CyclicLR)."""
    scheduler: tuple[float, ...] = ()
    """`_last_lr` of the scheduler."""
    base: tuple[float, ...] = ()
    """`base_lrs` of the scheduler."""


@dataclass(frozen=True, kw_only=True)
class FileReport:
    """One file: its verdict and the reasons."""

    path: str
    format: str
    verdict: str
    """healthy | suspicious | corrupt | unreadable | hostile"""
    size_bytes: int = 0
    scanned_bytes: int = 0
    """Bytes of tensors that were read; shared storages count once."""
    tensors: tuple[TensorReport, ...] = ()
    findings: tuple[TensorFinding, ...] = ()
    placeholders: tuple[str, ...] = ()
    """Classes that the file names, which were not imported."""
    step: int | None = None
    epoch: int | None = None
    rates: LearningRates = field(default_factory=LearningRates)
    notes: tuple[str, ...] = ()
    duration_s: float = 0.0

    @property
    def num_elements(self) -> int:
        return sum(t.stats.num_elements for t in self.tensors)

    @property
    def is_usable(self) -> bool:
        """Whether training can resume from this file: healthy or only suspicious."""
        return self.verdict in ("healthy", "suspicious")


@dataclass(frozen=True, kw_only=True)
class CheckpointReport:
    """One checkpoint: a single file, or the folder of files that belong together."""

    path: str
    kind: str
    """file | data | transformers | sharded | dcp | deepspeed; data is not a state to resume from"""
    verdict: str
    files: tuple[FileReport, ...] = ()
    findings: tuple[TensorFinding, ...] = ()
    """What is wrong with the checkpoint as a whole (a missing shard, a learning rate)."""
    step: int | None = None
    epoch: int | None = None
    rates: LearningRates = field(default_factory=LearningRates)
    modified: float = 0.0
    link_to: str | None = None
    """Where it points to when it is a symbolic link."""

    @property
    def is_usable(self) -> bool:
        return self.verdict in ("healthy", "suspicious")


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """One checkpoint in the timeline of its run."""

    path: str
    verdict: str
    step: int | None = None
    epoch: int | None = None
    weight_norm: float | None = None
    change: float | None = None
    """The largest relative change of a weight since the checkpoint before."""
    changed_tensor: str | None = None
    rates: LearningRates = field(default_factory=LearningRates)


@dataclass(frozen=True, kw_only=True)
class RunTimeline:
    """The checkpoints of one run, in order."""

    path: str
    entries: tuple[TimelineEntry, ...] = ()
    last_good: str | None = None
    broke_at: str | None = None
    """The first unusable checkpoint without a usable one after it."""
    first_broken: tuple[str, ...] = ()
    """The tensors that are non-finite there."""
    num_first_broken: int = 0


@dataclass(frozen=True, kw_only=True)
class ScanReport:
    """Everything that one scan found."""

    checkpoints: tuple[CheckpointReport, ...] = ()
    timelines: tuple[RunTimeline, ...] = ()
    skipped: tuple[str, ...] = ()
    """Files in scanned folders without tensors (text, images, logs)."""
    problems: tuple[TensorFinding, ...] = ()
    """Folders that were not searched, with the reasons."""
    num_unseen: int = 0
    """Checkpoints that were not scanned because of an interrupt."""
    duration_s: float = 0.0
    scanned_bytes: int = 0

    @property
    def verdict(self) -> str:
        """The worst verdict of all."""
        verdicts = [c.verdict for c in self.checkpoints]
        return worst([*verdicts, *(p.severity for p in self.problems)])

    @property
    def files(self) -> tuple[FileReport, ...]:
        return tuple(f for c in self.checkpoints for f in c.files)

    @property
    def last_good(self) -> str | None:
        """The last usable checkpoint of the (only) run; None when there is none or several runs."""
        return self.timelines[0].last_good if len(self.timelines) == 1 else None

    def exit_code(self, *, strict: bool = False) -> int:
        """0 clean, 1 something was found; `strict` also counts suspicious files."""
        allowed = ("healthy",) if strict else ("healthy", "suspicious")
        return 0 if self.verdict in allowed else 1

    def to_json(self, indent: int | None = 2) -> str:
        """This report as JSON text.

        >>> ScanReport.from_json(ScanReport(skipped=("a.txt",)).to_json()).skipped
        ('a.txt',)
        """
        plain = {"kind": "stayfinite.scan", "verdict": self.verdict, **to_plain(self)}
        return json.dumps(plain, indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> ScanReport:
        """The report that `to_json` wrote."""
        data = json.loads(text)
        return from_plain(cls, {k: v for k, v in data.items() if k not in ("kind", "verdict")})


@dataclass(frozen=True, kw_only=True)
class TensorDiff:
    """The difference of one tensor between two checkpoints."""

    name: str
    status: str
    """same | changed | only_in_a | only_in_b | reshaped | incomparable"""
    detail: str = ""
    relative_change: float | None = None
    """Norm of the difference over the norm in A (over that in B where A is zero)."""
    max_abs_change: float | None = None
    num_changed: int = 0
    num_nonfinite_a: int = 0
    num_nonfinite_b: int = 0
    role: str = "weights"
    norm_a: float | None = None
    norm_b: float | None = None
    norm_change: float | None = None
    usual: float | None = None
    """The relative change of this tensor between neighboring checkpoints of the run."""


@dataclass(frozen=True, kw_only=True)
class LayerDiff:
    """The change of one layer: all its tensors as one vector."""

    layer: str
    role: str
    relative_change: float | None
    """None when a value is not finite."""
    growth: float | None = None
    """Norm in B over norm in A, minus 1."""
    angle: float | None = None
    """The angle of its rotation in degrees."""
    usual: float | None = None
    """Its usual relative change."""
    num_tensors: int = 0
    num_changed: int = 0
    num_nonfinite_a: int = 0
    num_nonfinite_b: int = 0

    @property
    def times_usual(self) -> float | None:
        if self.relative_change is None or not self.usual:
            return None
        return self.relative_change / self.usual


@dataclass(frozen=True, kw_only=True)
class DiffReport:
    """What changed between two checkpoints: the weights first, the largest change first."""

    a: str
    b: str
    tensors: tuple[TensorDiff, ...] = ()
    layers: tuple[LayerDiff, ...] = ()
    """In the order of the model."""
    usual_source: str = ""
    """The checkpoints from which the usual change was computed."""
    rates_a: LearningRates = field(default_factory=LearningRates)
    rates_b: LearningRates = field(default_factory=LearningRates)

    @property
    def is_same(self) -> bool:
        return all(t.status == "same" for t in self.tensors) and self.rates_a == self.rates_b

    def to_json(self, indent: int | None = 2) -> str:
        """This report as JSON text.

        >>> '"is_same": true' in DiffReport(a="x.pt", b="y.pt").to_json()
        True
        """
        plain = {"kind": "stayfinite.diff", "is_same": self.is_same, **to_plain(self)}
        return json.dumps(plain, indent=indent, allow_nan=False)
