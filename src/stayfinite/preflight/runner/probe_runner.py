"""Runs probes: one measured step each, undone afterwards."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...devices import widest
from ...errors import UsageError
from ...foresee.capture import StepCapture
from ...foresee.intervals.analysis import judge
from ...investigate import changes
from ...investigate.replays.tracing import eager_stance, symptom_origin
from ...locate.modules import name_modules
from ...locate.slice import to_location
from ...locate.trace import OpTrace, SourceRef
from ...numerics.health import is_finite
from ...recover.snapshot import Snapshot
from ...runtime.batches import named_tensors
from ...runtime.rng import RngState
from ...runtime.state import TrainState
from ...runtime.step_changes import scaled_lr
from ..flow.losses import LossWatch
from ..probes import Probe, Proof, Seen
from .casts import HalfWatch, in_precision
from .keeps import Keeps, Undo
from .save import save_step
from .sizes import SavedSizes, peaks, state_sizes
from .watch import LayerWatch

__all__ = ["Attempt", "Bench", "loss_nodes", "step_schedule"]

_NODES = 40


class Bench:
    """The state of the training before its first step, and how to restore it."""

    def __init__(self, state: TrainState, device: str = "cpu") -> None:
        self.state = state
        self.device = device
        self.num_done = 0
        """Probes that came to a loss."""
        self._baseline = Snapshot()
        self._rng: RngState | None = None
        self._mark = Snapshot()
        self._mark_rng: RngState | None = None
        self._is_chained = False
        self._is_clean = False
        """Whether nothing has run since the last restore, because copying a large model takes time."""
        self.beside: list[nn.Module] = []
        """Modules that are no part of a model and keep a state: a loss with a running center."""
        self._beside: dict[int, list[tuple[Tensor, Tensor]]] = {}
        """Their buffers and what these held, by the snapshot that they belong to."""
        self.functions: list[Any] = []
        """The training's own functions, which may count their calls."""
        self._keeps: Keeps | None = None
        self._undo: dict[int, Undo] = {}
        """Puts back what its own code keeps in Python, by the snapshot that it belongs to."""

    def take_baseline(self) -> None:
        """Save everything that a probe can change."""
        self._keeps = Keeps([*self.state.roots.values(), *self.beside], self.functions)
        self._copy_into(self._baseline)
        self._rng = RngState.now()
        self._is_clean = False

    def _copy_into(self, snapshot: Snapshot) -> None:
        own, self.state.snapshot = self.state.snapshot, snapshot
        try:
            self.state.take_snapshot(0)
        finally:
            self.state.snapshot = own
        buffers = [b for m in self.beside for b in m.buffers()]
        self._beside[id(snapshot)] = [(b, b.detach().clone()) for b in buffers]
        if self._keeps is not None:
            self._undo[id(snapshot)] = self._keeps.note()

    def _restore(self, snapshot: Snapshot) -> None:
        if id(snapshot) in self._undo:
            self._undo[id(snapshot)]()
        snapshot.restore()
        with torch.no_grad():
            for buffer, held in self._beside.get(id(snapshot), ()):
                buffer.copy_(held)

    @property
    def has_baseline(self) -> bool:
        return self._rng is not None

    def reset(self) -> None:
        """Restore the state before the first step."""
        self.clear_gradients()
        if self._rng is not None:
            if not self._is_clean:
                self._restore(self._baseline)
            self._rng.restore()
            self._is_clean = True
        self._is_chained = False

    def clear_gradients(self) -> None:
        """No gradient is left of any step."""
        self.state.clear_grads()
        for p in (p for _, p in self.state.parameters()):
            p.grad = None

    def _reset_to_mark(self, drift: float) -> None:
        """Restore the marked state, or that before the first step."""
        if drift or self._mark_rng is None:
            self.reset()
        if self._mark_rng is None:
            return
        self.clear_gradients()
        trained = [p for _, p in self.state.parameters() if p.requires_grad] if drift else []
        start = [p.detach().clone() for p in trained]
        self._restore(self._mark)
        self._mark_rng.restore()
        with torch.no_grad():
            for p, before in zip(trained, start):
                p.add_(p - before, alpha=drift)

    def begin(self, probe: Probe, *around: contextlib.AbstractContextManager[Any]) -> Attempt:
        """Prepare a step inside `around`; call `Attempt.finish` after it."""
        if probe.is_later:
            self._reset_to_mark(probe.drift)
        elif probe.fresh or not self._is_chained:
            self.reset()
        self._is_clean = False
        attempt = Attempt(self, probe)
        attempt.enter(around)
        return attempt

    def end(self, attempt: Attempt) -> Seen:
        seen = attempt.finish()
        if attempt.probe.keep and seen.error is None:
            self._is_chained = True
            if attempt.probe.mark:
                self.state.clear_grads()
                self._copy_into(self._mark)
                self._mark_rng = RngState.now()
        else:
            self.reset()
        return seen


class Attempt:
    """One running probe. The vehicle reports the loss, the gradients and the step to it."""

    def __init__(self, bench: Bench, probe: Probe) -> None:
        self.bench = bench
        self.state = bench.state
        self.probe = probe
        self.seen = Seen(probe.name)
        self._stack = contextlib.ExitStack()
        self._trace: OpTrace | None = None
        self._capture: StepCapture | None = None
        self._watch: LayerWatch | None = None
        self._losses: LossWatch | None = None
        self._half: HalfWatch | None = None
        self._saved: SavedSizes | None = None
        self._norms: dict[int, float] = {}
        self._frozen: set[int] = set()
        self._weights: list[tuple[str, Tensor, Tensor]] = []
        self._start = _clock(bench.device)

    def enter(self, around: Iterable[contextlib.AbstractContextManager[Any]] = ()) -> None:
        """Everything that holds for the length of the step begins."""
        probe = self.probe
        if probe.save_to:
            save_step(probe.save_to, self.state, probe.batch)
        for context in around:
            self._stack.enter_context(context)
        if probe.around is not None:
            self._stack.enter_context(probe.around())
        is_looked_into = probe.trace or probe.watch or probe.prove is not None
        names = name_modules(self.state.roots) if is_looked_into else {}
        self.seen.lrs = tuple(rate * probe.lr_factor for rate in self.state.lrs())
        if probe.apply and probe.weigh:
            self._weights = [(n, p, p.detach().clone()) for n, p in self.state.parameters()]
        if probe.lr_factor != 1.0:
            self._stack.enter_context(scaled_lr(probe.lr_factor))
        if is_looked_into:
            self._stack.enter_context(eager_stance())
        if probe.scale is not None:
            self._stack.enter_context(_with_scale(self.state, probe.scale, self.bench.device))
        self._stack.enter_context(in_precision(probe.precision, self.state, self.bench.device))
        if probe.note_half:
            self._half = self._stack.enter_context(HalfWatch())
        if probe.sizes:
            held = [t for _, t in named_tensors(probe.batch)]
            held += [t for root in self.state.roots.values() for t in _held(root)]
            self._saved = self._stack.enter_context(SavedSizes(held))
        if probe.watch:
            self._watch = LayerWatch(names)
            self._stack.enter_context(self._watch)
            self._losses = self._stack.enter_context(LossWatch())
        if probe.trace:
            batch = [SourceRef("batch", n, t) for n, t in named_tensors(probe.batch)]
            self._trace = OpTrace([*batch, *self.state.sources()], names)
            self._stack.enter_context(self._trace)
        if probe.prove is not None:
            batch = [SourceRef("batch", n, t) for n, t in named_tensors(probe.batch)]
            self._capture = StepCapture([*batch, *self.state.sources()], names)
            self._stack.enter_context(self._capture)

    def finish(self) -> Seen:
        """Collect the results after the step, or after its exception."""
        seen = self.seen
        self.bench.num_done += seen.loss is not None
        if self._watch is not None:
            seen.layers = self._watch.layers()
            seen.loss_calls = self._losses.calls if self._losses is not None else []
            known = dict(self.state.parameters())
            seen.param_grads = {n: self._norms.get(id(p)) for n, p in known.items()}
        if self._half is not None:
            seen.is_half, seen.is_random = self._half.is_half, self._half.is_random
        if self._norms:
            seen.grad_norm = math.sqrt(sum(v * v for v in self._norms.values()))
        if self.probe.apply and seen.error is None:
            seen.updates = self._updates()
            self._look_at_state()
            if self.probe.measure:
                seen.peaks = peaks(self.state)
        if self._saved is not None:
            seen.sizes = {**state_sizes(self.state), "activations": self._saved.num_bytes}
        self._stack.close()
        if self._capture is not None and seen.error is None:
            self._prove(self._capture)
        seen.seconds = _clock(self.bench.device) - self._start
        return seen

    def _prove(self, captured: StepCapture) -> None:
        assert self.probe.prove is not None
        start = time.perf_counter()
        capture = captured.capture
        try:
            box = self.probe.prove(capture, self._norms)
            judgment = judge(capture, box)
        except UsageError:
            raise
        except Exception as e:
            self.seen.proof_error = f"the proof stopped with {type(e).__name__}: {e}"
            return
        took = time.perf_counter() - start
        self.seen.proof = Proof(judgment.verdicts, box, judgment.peak_bytes, took)

    def raised(self, error: BaseException, where: str = "") -> None:
        """The training did not survive this batch."""
        text = str(error).strip().splitlines()
        self.seen.error = f"{type(error).__name__}: {text[0] if text else ''}".rstrip(": ")
        self.seen.error_at = where

    def saw_loss(self, loss: Tensor, scale: float = 1.0) -> None:
        """The loss is known, before its backward; `scale` is what that will be multiplied by."""
        if self._watch is not None:
            self._watch.scale = scale
        with _unwatched():
            if loss.numel() == 1:
                self.seen.loss = float(loss.detach())
            if self.probe.weigh:  # not for each of a thousand steps
                self.seen.loss_ops = self.seen.loss_ops or loss_nodes(loss)
            is_good = is_finite(loss)
        if not is_good:
            self._bad([loss])

    def saw_gradients(self, scale: float = 1.0) -> None:
        """A backward is over."""
        bad = []
        with _unwatched(), torch.no_grad():
            for p, g in self.state.grads():
                if id(p) in self._frozen:
                    continue
                norm = _norm(g) / scale
                self._norms[id(p)] = norm
                if not math.isfinite(norm) and not is_finite(g):
                    bad.append(g)
        if bad:
            self._bad(bad)

    def saw_step(self, optimizer: Optimizer) -> None:
        """Its step is about to happen: later backwards (a GAN's other half) are not its own."""
        self._frozen |= {id(p) for g in optimizer.param_groups for p in g["params"]}
        if self._trace is not None:
            self._trace.direction = "optimizer"

    def stepped(self) -> None:
        if self._trace is not None:
            self._trace.direction = "forward"

    def _bad(self, symptoms: list[Tensor]) -> None:
        self.seen.is_finite = False
        if self._trace is not None and self.seen.location is None:
            origin = symptom_origin(self._trace, symptoms)
            if origin is not None:
                self.seen.location = to_location(origin)
            self._trace.is_paused = True

    def _look_at_state(self) -> None:
        with _unwatched():
            bad = [t for _, _, t in self.state.bad_state()]
        if bad:
            self._bad(bad)

    def _updates(self) -> dict[str, float]:
        found = {}
        with _unwatched(), torch.no_grad():
            for name, p, before in self._weights:
                size = _norm(before)
                if p.requires_grad and size > 0 and p.dtype == before.dtype:
                    found[name] = _norm(_wide(p.detach()) - _wide(before)) / size
        return found


@contextlib.contextmanager
def _with_scale(state: TrainState, scale: float, device: str) -> Iterator[None]:
    """The training's GradScaler at this scale, or the backward's start where there is none."""
    scalers = [s for s in state.scalers if s.is_enabled()]
    if not scalers:
        with changes.root_gradient(scale):
            yield
        return
    kept = [(s, s._scale, s._growth_tracker) for s in scalers]
    for s in scalers:
        s._scale, s._growth_tracker = None, None
        s._lazy_init_scale_growth_tracker(torch.device(device))
        s._scale.fill_(scale)
    try:
        yield
    finally:
        for s, value, tracker in kept:
            s._scale, s._growth_tracker = value, tracker


def _held(root: nn.Module) -> Iterator[Tensor]:
    """What a model has in memory whether or not a step is taken."""
    yield from root.parameters()
    yield from root.buffers()


def step_schedule(call: Callable[[], Any]) -> Any:
    """One step of a schedule; one that is through (we may take more steps than it was made for)
    leaves the rate as it is."""
    try:
        return call()
    except ValueError as e:
        if "Tried to step" not in str(e):
            raise
        return None


def loss_nodes(loss: Tensor) -> tuple[str, ...]:
    """Names of the autograd nodes behind a loss, nearest first."""
    found: list[str] = []
    todo: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while todo and len(found) < _NODES:
        node = todo.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        found.append(node.name())
        todo += [n for n, _ in node.next_functions]
    return tuple(found)


def _clock(device: str) -> float:
    """What a step costs: other programs' work on a busy machine is not its own."""
    return time.process_time() if device == "cpu" else time.perf_counter()


def _norm(t: Tensor) -> float:
    t = t.detach()
    if t.layout != torch.strided:
        t = t.coalesce().values() if t.layout == torch.sparse_coo else t.to_dense()
    if not t.numel():
        return 0.0
    return float(
        torch.linalg.vector_norm(t, dtype=widest(t.device) if t.is_floating_point() else None)
    )


def _wide(t: Tensor) -> Tensor:
    return t if t.is_complex() else t.float()


def _unwatched() -> Any:
    return torch.utils._python_dispatch._disable_current_modes()
