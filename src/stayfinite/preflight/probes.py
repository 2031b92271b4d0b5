"""The two protocols between the check groups and the runner of the training.

A group is a generator: it is given the Subject, yields Probes (things to try), is sent what each of
them showed (Seen), and returns its findings. Who runs a probe is not its business: a `build` target
is called directly, an unmodified script is driven through its own loop.

    def edges(subject: Subject) -> Checks:
        seen = yield Probe(batch=zeros_like(subject.batches[0]), name="all zero", trace=True)
        return [...]

A group may be run from the start again with the answers that are already known (a probe that raises
ends a script, which is then started again): given the same answers it must ask the same questions.
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
    "PRECISIONS",
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

PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass
class Probe:
    """One thing to try on the training.

    Afterwards parameters, buffers, optimizer, scheduler, scaler, gradients and random state are what
    they were before the training's first step. With `keep` they stay, and the next probe of the same
    group goes on from there; a probe that raises ends such a chain.
    """

    batch: Any
    name: str
    precision: str | None = None
    """fp32 | bf16 | fp16; None as the training does it."""
    watch: bool = False
    """Measure every layer's output and gradient."""
    trace: bool = False
    """Say where a non-finite value was born (slow, so only when one is to be expected)."""
    apply: bool = False
    """Let the optimizer's step happen; else it is held back after the gradients are known."""
    keep: bool = False
    fresh: bool = False
    """Begin from before the first step, whatever the probe before this one kept."""
    mark: bool = False
    """Of a kept step: remember the state behind it."""
    is_later: bool = False
    """Begin from the marked state instead."""
    drift: float = 0.0
    """Of one that begins there: the weights so many times further on the way they have gone."""
    weigh: bool = True
    """Measure how much each weight moves, where the step is applied."""
    measure: bool = False
    """Measure how large weights and moments are behind an applied step."""
    sizes: bool = False
    """Measure how much memory the training holds, and what the forward keeps for the backward."""
    around: Callable[[], contextlib.AbstractContextManager[Any]] | None = None
    """What the step runs inside of."""
    note_half: bool = False
    """Note whether anything is computed in half precision, and whether random numbers are drawn."""
    save_to: str = ""
    """A file that keeps everything as it is before this step, for `stayfinite replay`."""
    lr_factor: float = 1.0
    scale: float | None = None
    """The loss scale of this step; None: what the training's GradScaler has, 1 without one."""
    prove: Callable[[Capture, dict[int, float]], Box] | None = None
    """Capture the step, and judge its operators for the box that this gives; it is handed the
    capture and the size of each parameter's gradient by the parameter's identity."""


@dataclass
class LayerSeen:
    """What came out of one module, over all its calls in the step."""

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
    """One call of a loss function of torch, as it was seen."""

    name: str
    """cross_entropy | nll_loss | binary_cross_entropy_with_logits | mse_loss | ..."""
    value: float | None = None
    """What it gave, as a mean over what was counted; None where that is not known."""
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
    """What was proved of a captured step, and for which box."""

    verdicts: tuple[Verdict, ...]
    box: Box
    peak_bytes: int
    """The most memory that the ranges took."""
    seconds: float


@dataclass
class Seen:
    """What one probe showed."""

    name: str
    loss: float | None = None
    grad_norm: float | None = None
    is_finite: bool = True
    """Loss and gradients (and, with `apply`, parameters and optimizer state) have no NaN or Inf."""
    error: str | None = None
    """Type and text of what the training raised on this batch."""
    error_at: str = ""
    """Where it raised, in the user's code: "train.py:31 loss = ce(out, y)"."""
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
    """One real step of the training, as it was seen."""

    loss: float | None = None
    grad_norm: float | None = None
    lrs: tuple[float, ...] = ()
    num_batches: int = 1
    """More than one under gradient accumulation."""


@dataclass
class Subject:
    """The training that is checked: its own live objects, in the state before the first step."""

    models: dict[str, nn.Module]
    """By the prefix of their parameter names: "" for the only model."""
    optimizers: list[Optimizer] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    scalers: list[Any] = field(default_factory=list)
    criteria: list[nn.Module] = field(default_factory=list)
    """Loss modules that are not part of a model, as far as they were found."""
    clip_norm: float | None = None
    """What the loop clips the gradient norm to, as seen."""
    autocast_dtype: str | None = None
    """bfloat16 | float16 where the training enters autocast."""
    batches: list[Any] = field(default_factory=list)
    """A few real ones, by reference: never change them in place."""
    loaders: list[Any] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    """The first real steps. The state is that of before them."""
    loss_ops: tuple[str, ...] = ()
    batch_size: int | None = None
    device: str = "cpu"
    source: str = ""
    """What the user calls the target."""
    vehicle: str = "build"
    """build | loader | call: who runs the probes. With "call" the batch is the arguments of the
    model, `(args, kwargs)`, and the loop makes the targets: rows cannot be added or dropped."""
    roots: dict[str, Any] = field(default_factory=dict)
    """What else the training's step can reach, by name: the loss function of a build target, the
    variables of the script's own frames. Tensors to be trained are looked for in them."""
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
    """So many steps in a row are all that the script's loop makes; None where it makes enough."""
    budget_s: float | None = None
    """How long the whole check may take (`--budget`); None: what fits a small training."""
    is_pedantic: bool = False
    """Also tell what breaks only with data that nobody would feed (`--pedantic`)."""
    save_dir: str | None = None
    """Where batches that break the training are kept, for `stayfinite replay`; None: they are not."""
    saved_as: str | None = None
    """What that folder is called in the end, where it is moved."""
    data_samples: int | None = None
    """How many samples the data group looks at; None: what fits its time, -1: all."""
    on_samples: Callable[[int, int | None], None] = lambda done, total: None
    """For a long job inside a group: how much is done, of how much (None: not known)."""

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
