"""The evidence: everything known about a failure as plain values, which is all that rules may read.

It has no references to the live model, data set or optimizer, so a rule can be tested with a few lines.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..records import Event, Incident, Link, Location, Operand, StepRecord, TensorStats

__all__ = ["BatchPart", "Data", "Evidence", "Memory", "Resume", "Scale", "Searched", "Weights"]

_HALF = ("float16", "bfloat16")
_LIMIT = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7977e308}
_LONG = 20
_FALLING = 4
_FAR_BELOW = 1e3


@dataclass(frozen=True, kw_only=True)
class BatchPart:
    """One tensor of the failing batch."""

    name: str
    stats: TensorStats
    usual: float | None = None
    """The largest magnitude of this part in earlier batches; None if there were none."""
    usual_here: float | None = None
    """The median magnitude inside this tensor."""
    bad_rows: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """An earlier batch with a value far above all others."""

    step: int
    name: str
    peak: float
    usual: float
    """The median over the other batches of their largest magnitude."""
    row: int | None = None
    index: int | None = None
    """The position of that row in the data set, if the sampler is known."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The size of the parameters, and how it has changed."""

    largest: float = 0.0
    first: float = 0.0
    """The largest magnitude before the first step."""
    steps: int = 0
    """Steps since the snapshot."""
    growth: float = 1.0
    """The largest factor by which the norm of one parameter has grown since the start."""
    searched: float = 0.0
    """The largest magnitude where the optimizer's own search (LBFGS) evaluated the failing closure; 0 without one."""

    @property
    def total_growth(self) -> float:
        return max(self.growth, self.largest / self.first if self.first > 0 else 1.0)


@dataclass(frozen=True, kw_only=True)
class Resume:
    """What was restored in this process, and what else the file contained."""

    model: bool = False
    optimizer: bool = False
    scheduler: bool = False
    path: str | None = None
    file_has_optimizer: bool = False
    file_has_scheduler: bool = False
    has_scheduler: bool = False
    configured_lr: tuple[float, ...] = ()
    """The optimizer's learning rates before `load_state_dict` replaced them."""
    saved_lr: tuple[float, ...] = ()
    first_lr: tuple[float, ...] = ()
    """The learning rates of the first step of this run."""
    file_lr: tuple[float, ...] = ()
    """The learning rates in the file."""

    @property
    def is_resumed(self) -> bool:
        return self.model or self.optimizer


@dataclass(frozen=True, kw_only=True)
class Data:
    """The result of fetching the sample again."""

    origin: str = "unknown"
    """stored | pipeline | unknown"""
    is_stored: bool = False
    """Whether the pipeline made it when the data set was created, so that it is stored."""
    detail: str = ""
    file: str | None = None
    line: int | None = None
    source: str | None = None
    function: str | None = None
    op: str | None = None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """How a parameter or buffer that was bad from the start was made."""

    name: str
    filling: str = "unknown"
    """unfilled | partly | covered | filled | unknown: what the source does with allocated memory"""
    file: str | None = None
    line: int | None = None
    source: str | None = None
    is_garbage: bool = False
    """Whether its values look like uninitialized memory."""
    is_constant_nan: bool = False
    """Whether every bad value is the NaN with which deterministic mode fills memory."""
    is_all_nan: bool = False
    is_indirect: bool = False
    """Whether the source does not name it, but other allocated memory in the file may have become it."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Factors between the loss and the gradients."""

    factor: float | None = None
    """A constant by which the loss is multiplied just before the backward."""
    is_scaler_unused: bool = False
    """Whether a GradScaler scales the loss, but never unscales or steps."""
    is_passed_by: bool = False
    """Whether one optimizer steps through the scaler and another without it."""
    is_stepped_again: bool = False
    """Whether the scaler has left the step out, and the optimizer was called once more without it."""
    scaler: float | None = None
    is_collapse: bool = False


@dataclass(frozen=True, kw_only=True)
class Searched:
    """The search for a value of a setting with which the training stays finite."""

    before: float | None = None
    """The current value; None if the setting is not in use."""
    passed: float | None = None
    """The largest value that passed; None if there is none."""
    failed: float | None = None
    """The smallest value that failed."""
    num_steps: int = 0
    """The number of steps from the last healthy snapshot that stayed finite with the passing value."""
    num_batches: int = 0
    """The number of different batches in these steps."""
    is_limit: bool = False
    """Whether it was an upper limit of all rates; otherwise all of them were scaled alike."""


@dataclass(frozen=True, kw_only=True)
class Quotient:
    """A division by almost zero; with a larger divisor, the step is finite."""

    file: str
    line: int
    smallest: float


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All evidence."""

    event: Event
    location: Location
    history: tuple[StepRecord, ...] = ()
    weights: Weights = field(default_factory=Weights)
    batch: tuple[BatchPart, ...] = ()
    outlier: Outlier | None = None
    resume: Resume = field(default_factory=Resume)
    data: Data | None = None
    own_update: Data | None = None
    """The script's own line that moves the weights by a quotient, if its update has made them bad."""
    memory: Memory | None = None
    scale: Scale = field(default_factory=Scale)
    optimizer: Mapping[str, str] = field(default_factory=dict)
    """Type and settings of the optimizer, as text."""
    gradient_peaks: tuple[float, ...] = ()
    is_half: bool = False
    """Whether parameters, the batch or autocast use half precision."""
    is_complete: bool = True
    num_finite_replays: int = 0
    """How often the whole, unchanged step was replayed and was finite."""
    own_counts: tuple[str, ...] = ()
    """Numbers in the attributes of modules that such a replay has changed."""
    is_discarded: bool = False
    """Whether a mask, `where`, clamp or selection of the forward discarded a non-finite value."""
    is_clipped: bool = False
    """Whether the loop clips its gradients."""
    rate: Searched | None = None
    clip: Searched | None = None
    quotient: Quotient | None = None
    results: Mapping[str, str] = field(default_factory=dict)
    """The outcomes of experiments so far, by name: finite | nonfinite | not_run."""

    @classmethod
    def of(cls, incident: Incident) -> Evidence:
        """The evidence that an incident alone contains."""
        return cls(event=incident.event, location=incident.location, history=incident.history)

    def with_result(self, name: str, outcome: str) -> Evidence:
        return dataclasses.replace(self, results={**self.results, name: outcome})

    @property
    def birth(self) -> Link | None:
        return next((c for c in self.location.chain if c.role == "birth"), None)

    @property
    def source(self) -> Link | None:
        return next((c for c in self.location.chain if c.role == "source"), None)

    @property
    def is_backward(self) -> bool:
        """Whether it was born in a derivative. A custom backward is ordinary code."""
        birth = self.birth
        return birth is not None and birth.direction == "backward" and not self.is_own_backward

    @property
    def is_own_backward(self) -> bool:
        """Whether it was born in the user's own `autograd.Function.backward` or hook."""
        return self.fact("own_backward") > 0

    @property
    def was_bad_before(self) -> bool:
        """Whether the forward of this line already had a non-finite value, which was hidden later."""
        return self.is_backward and self.fact("forward_was_bad") > 0

    @property
    def forward_name(self) -> str:
        """For a birth in the backward: the function whose derivative it is, as written: "log1p", "sqrt"."""
        base = re.sub(r"Backward\d*$", "", self.node)
        known = {"LinalgVectorNorm": "norm", "Std": "std", "Var": "var", "Log1P": "log1p"}
        return known.get(base) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", base).lower()

    @property
    def is_in_optimizer(self) -> bool:
        return self.birth is not None and self.birth.direction == "optimizer"

    @property
    def is_in_library_optimizer(self) -> bool:
        """Whether it was born in the update of an optimizer that the user did not write."""
        return self.is_in_optimizer and self.location.library_file is not None

    @property
    def kernel(self) -> str:
        """The aten operator of the birth, without "aten." and a trailing underscore.

        With `foreach` the same work runs over lists: `_foreach_div_` counts as `div`.
        """
        if self.birth is None:
            return ""
        name = (self.birth.kernel or self.birth.op or "").split(".")[-1]
        name = name.removeprefix("_foreach_")
        return name.rstrip("_") if not name.startswith("_") else name

    @property
    def node(self) -> str:
        """The autograd node of a birth in the backward ("SqrtBackward0"), else ""."""
        return self.birth.op or "" if self.birth is not None and self.is_backward else ""

    @property
    def made_nan(self) -> bool:
        return any(o.stats is not None and o.stats.num_nan for o in self._outputs)

    @property
    def made_inf(self) -> bool:
        return any(
            o.stats is not None and o.stats.num_posinf + o.stats.num_neginf for o in self._outputs
        )

    @property
    def _outputs(self) -> tuple[Operand, ...]:
        return self.birth.outputs if self.birth is not None else ()

    @property
    def dtype(self) -> str:
        """The dtype of the bad result."""
        for o in self._outputs:
            if o.stats is not None:
                return o.stats.dtype
        return ""

    @property
    def is_half_birth(self) -> bool:
        return self.dtype in _HALF

    @property
    def limit(self) -> float:
        """The largest number of the dtype of the birth."""
        return _LIMIT.get(self.dtype, _LIMIT["float32"])

    def operand(self, *names: str) -> Operand | None:
        """The first argument of the birth with one of these names."""
        if self.birth is None:
            return None
        for name in names:
            for o in self.birth.inputs:
                if o.name == name:
                    return o
        return None

    def at_bad(self, *names: str) -> TensorStats | None:
        """An argument at the positions where the result is bad; the whole argument if they are unknown."""
        o = self.operand(*names)
        if o is None:
            return None
        return o.stats_at_bad or o.stats

    def number(self, *names: str) -> float | None:
        """An argument that is a plain number or a tensor of one element."""
        o = self.operand(*names)
        if o is None:
            return None
        if o.value is not None:
            try:
                return float(o.value)
            except ValueError:
                return None
        if o.stats is not None and o.stats.num_elements == 1 and o.stats.is_finite:
            return o.stats.max
        return None

    @property
    def tensors(self) -> tuple[TensorStats, ...]:
        """All tensor arguments of the birth."""
        return tuple(o.stats for o in self.birth.inputs if o.stats) if self.birth else ()

    @property
    def has_finite_inputs(self) -> bool:
        return all(s.is_finite for s in self.tensors)

    @property
    def largest_input(self) -> float:
        return max((s.abs_max for s in self.tensors if s.abs_max is not None), default=0.0)

    def fact(self, name: str) -> float:
        return self.birth.facts.get(name, 0.0) if self.birth is not None else 0.0

    @property
    def is_overflow(self) -> bool:
        """Whether finite arguments gave a result that is too large; a sum of both signs may give NaN with it."""
        return self.birth is not None and self.made_inf and self.has_finite_inputs

    @property
    def losses(self) -> tuple[float, ...]:
        """Finite losses of applied steps, oldest first."""
        found = (abs(r.loss) for r in self.history[-_LONG:] if r.loss is not None and r.is_applied)
        return tuple(v for v in found if math.isfinite(v))

    @property
    def loss_growth(self) -> float:
        """The ratio of the last loss to the smallest of the steps before, while it rises."""
        losses = self.losses
        if len(losses) < 2 or losses[-1] < losses[-2]:
            return 1.0
        return losses[-1] / max(min(losses[:-1]), 1e-12) if losses[-1] > 1 else 1.0

    @property
    def falls_without_bound(self) -> bool:
        """Whether the loss went below zero, further with every step."""
        seen = [r.loss for r in self.history[-_FALLING:] if r.loss is not None and r.is_applied]
        if len(seen) < _FALLING or seen[-1] > -_FAR_BELOW or not math.isfinite(seen[-1]):
            return False
        return all(later < earlier for earlier, later in itertools.pairwise(seen))

    @property
    def is_first_step(self) -> bool:
        return not self.history

    @property
    def has_diverged(self) -> float:
        """0 to 1: the confidence that the weights themselves have diverged."""
        score = 0.0
        growth = self.weights.total_growth
        if self.loss_growth > 1e2:
            score = 0.75
        if self.loss_growth > 1e4:
            score = 0.9
        if growth > 1e2:
            score = max(score, 0.9)
        elif growth > 10:
            score = max(score, 0.7 if self.loss_growth > 10 else 0.55)
        if growth < 1.5 and self.weights.first > 0:
            score *= (
                0.5  # if the loss rises while the weights do not change, the batch is the cause
            )
        return score
