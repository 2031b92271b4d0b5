"""The two protocols between the check groups and the runner of the training.

A group is a generator: it gets the Subject, yields Probes, receives the result of each (Seen), and returns its findings. It does
not depend on the runner: a `build` target is called directly, an unmodified script is driven through its own loop.

    def edges(subject: Subject) -> Checks:
        seen = yield Probe(batch=zeros_like(subject.batches[0]), name="all zero", trace=True)
        return [...]

A group may be restarted with the known answers (a probe that raises ends a script, which is then restarted), so with the same
answers it must yield the same probes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..records import Location
from .records import Finding

if TYPE_CHECKING:  # the command itself does without torch: importing it takes a second
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from ..foresee.intervals.box import Box
    from ..foresee.records import Verdict
    from ..foresee.tape import Capture

__all__ = [
    "Checks",
    "Group",
    "LayerSeen",
    "LossCall",
    "Probe",
    "Proof",
    "Seen",
    "Step",
    "Subject",
]


@dataclass
class Probe:
    """One trial step of the training.

    Afterwards parameters, buffers, optimizer, scheduler, scaler, gradients and random state are restored to those before the
    training's first step. With `keep` they are not, and the next probe of the same group continues from there; a probe that raises
    ends such a chain.
    """

    batch: Any
    name: str
    precision: str | None = None
    """fp32 | bf16 | fp16; None for the training's own precision."""
    watch: bool = False
    """Measure every layer's output and gradient."""
    trace: bool = False
    """Find where a non-finite value is born; slow, so only if one is expected."""
    apply: bool = False
    """Run the optimizer's step; otherwise the probe ends after the gradients."""
    keep: bool = False
    fresh: bool = False
    """Start before the first step, even if the previous probe was kept."""
    mark: bool = False
    """For a kept step: mark the state after it."""
    is_later: bool = False
    """Start from the marked state instead."""
    drift: float = 0.0
    """For a probe from the mark: extrapolate the weights by this factor."""
    weigh: bool = True
    """Measure the update of each weight, if the step is applied."""
    measure: bool = False
    """Measure the magnitude of weights and moments after an applied step."""
    sizes: bool = False
    """Measure the memory of the training, and what the forward saves for the backward."""
    around: Callable[[], contextlib.AbstractContextManager[Any]] | None = None
    """A context for the step."""
    note_half: bool = False
    """Note whether anything is computed in half precision, and whether random numbers are drawn."""
    save_to: str = ""
    """The file to which to save the state before this step, for `stayfinite replay`."""
    lr_factor: float = 1.0
    scale: float | None = None
    """The loss scale of this step; None: that of the training's GradScaler, or 1."""
    prove: Callable[[Capture, dict[int, float]], Box] | None = None
    """Capture the step, and analyze its operators for the box that this returns; it gets the capture and the magnitude of
    each parameter's gradient by id.
    """


@dataclass
class LayerSeen:
    """The outputs of one module over all its calls in the step."""

    module: str
    """Dotted path; "" for the root."""
    kind: str
    """The class's name."""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    """Of the first output tensor of the last call."""
    num_calls: int = 0
    num_elements: int = 0
    num_bad: int = 0
    """NaN and Inf in the output."""
    abs_max: float = 0.0
    mean: float = 0.0
    std: float = 0.0
    dead_units: int = 0
    """Positions of the last dimension (channels of a 4-D output) that are zero over the batch."""
    num_units: int = 0
    underflow_fp16: float = 0.0
    """Share of the non-zero elements that float16 rounds to zero."""
    grad_abs_max: float | None = None
    """Of the gradient of its output, without any loss scale; None where none came."""
    grad_norm: float | None = None
    grad_underflow_fp16: float = 0.0
    peak: float = 0.0
    """Largest finite magnitude that any operator inside this module (not inside a child) gave."""
    peak_op: str = ""
    depth: int = 0
    """The order in which modules finished in the first forward: 0 is nearest to the input."""
    sample: Tensor | None = field(default=None, repr=False, compare=False)
    """Some elements of the last output in float32, the same places in every precision."""


@dataclass
class LossCall:
    """One observed call of a loss function of torch."""

    name: str
    """cross_entropy | nll_loss | binary_cross_entropy_with_logits | mse_loss | ..."""
    value: float | None = None
    """Its result as a mean over the counted elements; None if unknown."""
    num_classes: int | None = None
    input_shape: tuple[int, ...] = ()
    target_shape: tuple[int, ...] = ()
    input_min: float | None = None
    input_max: float | None = None
    is_distribution: bool = False
    """Every row of the input is a probability distribution: a softmax was applied already."""
    input_op: str = ""
    """The autograd node that made the input, views left out: "SoftmaxBackward0"."""
    has_weights: bool = False
    """Class weights or `pos_weight` were given: the expected value is not the plain one."""
    at: str = ""
    """Where the training called it: "train.py:31"."""


@dataclass
class Proof:
    """The proof for a captured step, and its box."""

    verdicts: tuple[Verdict, ...]
    box: Box
    peak_bytes: int
    """The most memory that the ranges took."""
    seconds: float


@dataclass
class Seen:
    """The result of one probe."""

    name: str
    loss: float | None = None
    grad_norm: float | None = None
    is_finite: bool = True
    """Loss and gradients (and, with `apply`, parameters and optimizer state) have no NaN or Inf."""
    error: str | None = None
    """Type and text of the exception on this batch."""
    error_at: str = ""
    """The line in the user's code that raised: "train.py:31 loss = ce(out, y)"."""
    location: Location | None = None
    layers: list[LayerSeen] = field(default_factory=list)
    """In the order of the forward; with `watch`."""
    param_grads: dict[str, float | None] = field(default_factory=dict)
    """Norm of each parameter's gradient, None where no gradient came; with `watch`."""
    updates: dict[str, float] = field(default_factory=dict)
    """Norm of the update over the norm of the weight, for each parameter; with `apply`."""
    lrs: tuple[float, ...] = ()
    loss_ops: tuple[str, ...] = ()
    """The autograd nodes from the loss backwards, nearest first: "NllLossBackward0", ..."""
    loss_calls: list[LossCall] = field(default_factory=list)
    """The loss functions that were called, as `LossWatch` saw them; with `watch`."""
    is_half: bool = False
    """An operator gave float16 or bfloat16; with `note_half`."""
    is_random: bool = True
    """An operator drew random numbers, or may have: known with `note_half`."""
    peaks: dict[str, float] = field(default_factory=dict)
    """The largest magnitude of the weights and of each kind of moment; with `measure`."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes: parameters, gradients, optimizer, activations; with `sizes`."""
    seconds: float = 0.0
    """Of computing; of waiting, where the device is not the CPU."""
    proof: Proof | None = None
    """With `prove`."""
    proof_error: str = ""
    """Why there is no proof."""


@dataclass
class Step:
    """One observed real step of the training."""

    loss: float | None = None
    grad_norm: float | None = None
    lrs: tuple[float, ...] = ()
    num_batches: int = 1
    """More than one under gradient accumulation."""


@dataclass
class Subject:
    """The training that is checked: its live objects, in the state before the first step."""

    models: dict[str, nn.Module]
    """By the prefix of their parameter names: "" for the only model."""
    optimizers: list[Optimizer] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    scalers: list[Any] = field(default_factory=list)
    criteria: list[nn.Module] = field(default_factory=list)
    """Loss modules that are not part of a model, as far as they were found."""
    clip_norm: float | None = None
    """The limit on the gradient norm in the loop, as observed."""
    autocast_dtype: str | None = None
    """bfloat16 | float16 where the training enters autocast."""
    batches: list[Any] = field(default_factory=list)
    """A few real batches by reference: never change them in place."""
    loaders: list[Any] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    """The first real steps. The state is that before them."""
    loss_ops: tuple[str, ...] = ()
    batch_size: int | None = None
    device: str = "cpu"
    source: str = ""
    """The user's name for the target."""
    vehicle: str = "build"
    """build | loader | call: who runs the probes. With "call" the batch is the arguments of the
    model, `(args, kwargs)`, and the loop makes the targets: rows cannot be added or dropped."""
    roots: dict[str, Any] = field(default_factory=dict)
    """Further objects that the step can reach, by name: the loss function of a build target, the variables of the script's
    frames. They are searched for tensors to train.
    """
    rebuild: Callable[[], dict[str, nn.Module]] | None = None
    """Makes the models anew, where the target allows it (`build`)."""
    config: dict[str, Any] | None = None
    """The config file's values by dotted key, where one was given."""
    config_path: str = ""
    box_path: str = ""
    """A file with the box to prove things for (`--box`); "" for the box of what was seen."""
    seed: int = 0
    num_steps: int = 10
    """How many real steps the stability group may take (`--steps`)."""
    longest_run: int | None = None
    """The maximum number of consecutive steps of the script's loop; None if there are enough."""
    budget_s: float | None = None
    """How long the whole check may take (`--budget`); None: what fits a small training."""
    is_pedantic: bool = False
    """Also report failures on unrealistic data (`--pedantic`)."""
    save_dir: str | None = None
    """The folder for batches that break the training, for `stayfinite replay`; None: not saved."""
    saved_as: str | None = None
    """The final name of that folder, if it is moved."""
    data_samples: int | None = None
    """How many samples the data group looks at; None: what fits its time, -1: all."""
    on_samples: Callable[[int, int | None], None] = lambda done, total: None
    """Reports the progress of a long job in a group: done, total (None: unknown)."""

    @property
    def can_change_rows(self) -> bool:
        return self.vehicle != "call"

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter of every model with its full name, shared ones once."""
        seen: set[int] = set()
        for prefix, model in self.models.items():
            for name, p in model.named_parameters():
                if id(p) not in seen:
                    seen.add(id(p))
                    yield f"{prefix}.{name}" if prefix else name, p

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Every module of every model with its full path, shared ones once."""
        seen: set[int] = set()
        for prefix, model in self.models.items():
            for name, module in model.named_modules():
                if id(module) not in seen:
                    seen.add(id(module))
                    yield f"{prefix}.{name}" if prefix and name else prefix or name, module


Checks = Generator[Probe, Seen, list[Finding]]
Group = Callable[[Subject], Checks]
