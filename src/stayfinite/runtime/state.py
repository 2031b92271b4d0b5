"""The training's objects: their names, and how to restore them."""

from __future__ import annotations

import functools
import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..locate.modules import unwrapped
from ..locate.trace import SourceRef
from ..numerics.health import FiniteFlag, is_finite
from ..putting_back import put_back
from ..recover.snapshot import Snapshot
from .batches import named_tensors
from .buffers import Buffers, join
from .companions import Companions, undo_of
from .discover import Beside
from .undo import Capture, attributes, by_state_dict, entries, modes, optimizer_extras, scaler_state
from .weak import WeakList

__all__ = ["TrainState"]


class TrainState:
    """Models, optimizers, schedulers and scalers of one training, given or discovered.

    They are held by weak references: what the script drops is gone, and when its optimizer is gone,
    so is every copy that was made of its state.
    """

    def __init__(self) -> None:
        self._roots: dict[str, weakref.ref[nn.Module]] = {}
        self.optimizers: WeakList[Optimizer] = WeakList(self._optimizer_gone)
        self.schedulers: WeakList[Any] = WeakList()
        self.scalers: WeakList[Any] = WeakList()
        self.generation = 0
        """Goes up when an optimizer is gone: what was copied before is of another training."""
        self.num_changes = 0
        """Goes up with all that decides how a step is taken: who has looked at it need not look at each step."""
        self.averages: dict[str, nn.Module] = {}
        """Running averages of the weights: nothing moves them but the loop itself."""
        self.others: dict[str, Any] = {}
        """Anything else with `state_dict` and `load_state_dict` that goes back with a rollback."""
        self.beside: Beside | None = None
        """Found together with the models, for the window that opens just now."""
        self.snapshot = Snapshot()
        self.initially_bad: set[str] = set()
        self.first_sizes: dict[str, tuple[float, float]] = {}
        """(largest magnitude, norm) of each parameter before the first step."""
        self.first_lrs: tuple[float, ...] = ()
        self.companions = Companions()
        self.buffers = Buffers(self._roots, lambda: self.companions.training)
        self._flag: FiniteFlag | None = None
        self._names: dict[int, str] | None = None
        self._params: list[list[Tensor]] | None = None
        self._rates: list[Any] = []
        self._lrs: tuple[float, ...] = ()

    @property
    def roots(self) -> dict[str, nn.Module]:
        """The models that are still there, by name."""
        alive = {name: ref() for name, ref in self._roots.items()}
        return {name: module for name, module in alive.items() if module is not None}

    def add_root(self, module: nn.Module, name: str | None = None) -> None:
        inner = unwrapped(module)
        if any(m is inner for m in self.roots.values()):
            return
        if name is None:
            name = "" if not self._roots else f"{type(inner).__name__}{len(self._roots)}"
        self._roots[name] = weakref.ref(inner)
        self._forget_caches()

    def clear_roots(self) -> None:
        self._roots.clear()
        self._forget_caches()

    def _optimizer_gone(self) -> None:
        """With its last optimizer a training is over: nothing of it is kept. Where others are left, a step
        of theirs may be under way, and what is kept for it stays until the next one begins."""
        self.generation += 1
        self.num_changes += 1
        if not self.optimizers:
            self.let_go()

    def forget_gone(self) -> None:
        """Copies are of another training now; those of this one are about to be made."""
        self.snapshot.drop()
        self.buffers.clear()
        self._forget_caches()

    def add_optimizer(self, optimizer: Optimizer) -> None:
        if not any(o is optimizer for o in self.optimizers):
            self.optimizers.append(optimizer)
            self._forget_caches()

    def release(self, optimizer: Optimizer) -> None:
        """Somebody else trains with it: neither it nor its model is touched here any more."""
        self.optimizers.remove(optimizer)
        moved = {id(p) for o in self.optimizers for g in o.param_groups for p in g["params"]}
        theirs = {id(p) for g in optimizer.param_groups for p in g["params"]} - moved
        for name, root in self.roots.items():
            params = {id(p) for p in root.parameters()}
            if params & theirs and not params & moved:
                del self._roots[name]
        self.generation += 1
        self.snapshot.drop()  # to go back there would move theirs
        self._forget_caches()

    def add_scheduler(self, scheduler: Any) -> None:
        if not any(s is scheduler for s in self.schedulers):
            self.schedulers.append(scheduler)
            if self.snapshot.is_taken:
                self.snapshot.add(attributes(scheduler))

    def add_scaler(self, scaler: Any) -> None:
        if not any(s is scaler for s in self.scalers):
            self.num_changes += 1
            self.scalers.append(scaler)
            if self.snapshot.is_taken and scaler.is_enabled():
                self.snapshot.add(scaler_state(scaler))

    def take_beside(self) -> Beside | None:
        found, self.beside = self.beside, None
        return found

    def adopt_companions(self, beside: Beside, others: set[int], num_applied: int) -> None:
        moved = (p for o in self.optimizers for g in o.param_groups for p in g["params"])
        known = others | {id(m) for m in self.roots.values()}
        self.companions.adopt(beside, moved, known, num_applied)
        self.buffers.look_again()
        self.num_changes += 1

    def adopt_averages(self, modules: Iterable[nn.Module]) -> bool:
        """Take in averages of our models (`AveragedModel`); True if there was a new one."""
        known = [id(m) for m in (*self.averages.values(), *self.roots.values())]
        own = [[p.shape for p in root.parameters()] for root in self.roots.values()]
        new = [
            m for m in modules if id(m) not in known and [p.shape for p in m.parameters()] in own
        ]
        for module in new:
            self.averages[f"average{len(self.averages) or ''}"] = module
        return bool(new)

    def let_go(self) -> None:
        """The training is over: hold on to nothing of it."""
        for held in (self._roots, self.optimizers, self.schedulers, self.scalers, self.buffers):
            held.clear()
        self.averages.clear()
        self.companions.clear()
        self.snapshot.drop()
        self._forget_caches()

    def _forget_caches(self) -> None:
        self._names = self._params = None
        self.buffers.look_again()
        self.num_changes += 1

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter of the models, then those that only an optimizer knows."""
        seen: set[int] = set()
        for prefix, root in self.roots.items():
            for name, p in root.named_parameters():
                if id(p) not in seen:
                    seen.add(id(p))
                    yield join(prefix, name), p
        for i, optimizer in enumerate(self.optimizers):
            for g, group in enumerate(optimizer.param_groups):
                names = group.get("param_names", ())
                for j, p in enumerate(group["params"]):
                    if id(p) not in seen:
                        seen.add(id(p))
                        yield names[j] if names else f"optimizer{i}.group{g}.param{j}", p

    def name_of(self, parameter: Tensor) -> str:
        if self._names is None:
            self._names = {id(p): n for n, p in self.parameters()}
        return self._names.get(id(parameter), "a tensor that is no parameter of the model")

    def optimizer_state(self) -> Iterator[tuple[str, Tensor]]:
        for optimizer in self.optimizers:
            for p, held in optimizer.state.items():
                owner = self.name_of(p) if isinstance(p, Tensor) else type(p).__name__
                if not isinstance(held, dict):
                    continue
                for key, value in held.items():
                    if isinstance(value, Tensor):
                        yield f"{owner}:{key}", value

    def average_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._average_parts()
        for name, other in self.others.items():
            yield from named_tensors(other.state_dict(), name)

    def grads(self, optimizers: list[Optimizer] | None = None) -> list[tuple[Tensor, Tensor]]:
        """(parameter, gradient) of what the optimizers move."""
        return [
            (p, p.grad)
            for optimizer in (self.optimizers if optimizers is None else optimizers)
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]

    def lrs(self) -> tuple[float, ...]:
        """The learning rate of every group; the same tuple while nobody has set another."""
        rates = []
        for ref in self.optimizers.refs:
            for group in getattr(ref(), "param_groups", ()):
                rates.append(group.get("lr"))
        if rates != self._rates:
            kept = [r for r in rates if isinstance(r, (int, float, Tensor))]
            # A tensor is changed in place, so it has to be read again each time.
            self._rates = [] if any(isinstance(r, Tensor) for r in kept) else rates
            self._lrs = tuple(float(r) for r in kept)
        return self._lrs

    def set_lrs(self, rates: tuple[float, ...]) -> None:
        groups = [g for o in self.optimizers for g in o.param_groups]
        if len(rates) == len(groups):
            for group, rate in zip(groups, rates):
                if not isinstance(group["lr"], Tensor):
                    group["lr"] = rate

    @property
    def is_scaled(self) -> bool:
        """Whether a GradScaler has a say in the steps."""
        return any(s.is_enabled() for s in self.scalers)

    def scale(self) -> float | None:
        for scaler in self.scalers:
            if scaler.is_enabled() and scaler._scale is not None:
                return float(scaler.get_scale())
        return None

    def sources(self) -> list[SourceRef]:
        """Everything that existed before the step, for the trace."""
        return [
            *(SourceRef("parameter", n, p) for n, p in self.parameters()),
            *(SourceRef("buffer", n, b) for n, b in self.buffers),
            *(SourceRef("optimizer_state", n, t) for n, t in self.optimizer_state()),
        ]

    def bad_state(self, ignore_initial: bool = True) -> list[tuple[str, str, Tensor]]:
        """(kind, name, tensor) of all that is non-finite; one fused pass while all is well."""
        groups = (
            ("parameter", list(self.parameters())),
            ("buffer", list(self.buffers)),
            ("optimizer_state", list(self.optimizer_state())),
            ("average", list(self.average_tensors())),
        )
        tensors = [t for _, pairs in groups for _, t in pairs if t.device.type != "meta"]
        if not tensors:
            return []
        flag = self._flag_on(tensors[0].device)
        flag.reset()
        flag.fold_readonly(tensors)
        if not flag.read():
            return []
        return [
            (kind, name, t)
            for kind, pairs in groups
            for name, t in pairs
            if not (ignore_initial and f"{kind} {name}" in self.initially_bad) and not is_finite(t)
        ]

    @torch.no_grad()
    def note_initial(self) -> None:
        """What is already non-finite now (a mask of -inf by design) is no news later."""
        self.initially_bad = {f"{k} {n}" for k, n, _ in self.bad_state(ignore_initial=False)}
        self.first_sizes = {
            n: (float(torch.linalg.vector_norm(p, math.inf)), float(torch.linalg.vector_norm(p)))
            for n, p in self.parameters()
            if p.is_floating_point() and p.numel() and p.layout == torch.strided
            and p.device.type != "meta" and f"parameter {n}" not in self.initially_bad
        }  # fmt: skip
        self.first_lrs = self.lrs()

    def _flag_on(self, device: torch.device) -> FiniteFlag:
        if self._flag is None or self._flag.device != device:
            self._flag = FiniteFlag(device)
        return self._flag

    def take_snapshot(self, tag: int) -> float:
        """Copy all that a step moves; returns the seconds it took."""
        start = time.perf_counter()
        named = self._moved()
        dicts: list[dict[Any, Any]] = [optimizer.state for optimizer in self.optimizers]
        tensors, names = [t for _, t in named], [n for n, _ in named]
        self.snapshot.take(tag, tensors, self.snapshot_captures(), dicts, names)
        return time.perf_counter() - start

    def retake_small(self) -> None:
        """The snapshot learns of rates and schedules that were set while no step was made."""
        if self.snapshot.is_taken:
            self.snapshot.retake_small(self.snapshot_captures())

    def _moved(self) -> list[tuple[str, Tensor]]:
        named = [(f"parameter {n}", p) for n, p in self.parameters()]
        named += [(f"buffer {n}", b) for n, b in self.buffers if b.device.type != "meta"]
        named += [(f"optimizer_state {n}", t) for n, t in self.optimizer_state()]
        named += [(f"average {n}", t) for n, t in self._average_parts()]
        for optimizer in self.optimizers:
            for i, group in enumerate(optimizer.param_groups):
                named += [(f"group{i} {k}", v) for k, v in group.items() if isinstance(v, Tensor)]
        return named

    def versions(self) -> list[tuple[Tensor, int]]:
        """Each tensor with its count of writes: what is equal later has not been written to."""
        named = [*self._moved(), *self.average_tensors()]
        return [(t, t._version) for _, t in named if not t.is_inference()]

    def weight_versions(self) -> dict[int, int]:
        """How often each parameter and each moment was written to, by its identity."""
        tensors = (t for _, t in (*self.parameters(), *self.optimizer_state()))
        return {id(t): t._version for t in tensors if not t.is_inference()}

    def is_still_finite(self, versions: list[tuple[Tensor, int]]) -> bool:
        """Whether all that was written to since is finite; what was not, was seen to be."""
        known = {id(t): version for t, version in versions}
        written = [t for t, v in self.versions() if known.get(id(t)) != v]
        return not written or not self.bad_state()

    def snapshot_captures(self) -> list[Capture]:
        """What goes into a snapshot besides tensors."""
        captures = [*self.small_captures(), modes(self.roots.values())]
        for optimizer in self.optimizers:
            captures += [entries(e) for e in optimizer.state.values() if isinstance(e, dict)]
        return captures + [by_state_dict(other) for other in self.others.values()]

    def scale_lrs(self, factor: float) -> None:
        """All learning rates times `factor`, those included that schedulers compute from."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for key in ("lr", "initial_lr", "max_lr", "min_lr"):
                    value = group.get(key)
                    if isinstance(value, Tensor):
                        value.mul_(factor)
                    elif isinstance(value, (int, float)):
                        group[key] = value * factor
        for scheduler in self.schedulers:
            for key in ("base_lrs", "max_lrs", "_last_lr", "min_lrs"):
                values = getattr(scheduler, key, None)
                if isinstance(values, list):
                    setattr(scheduler, key, [v * factor for v in values])

    def small_captures(self) -> list[Capture]:
        """What is not a tensor of the model: rates, schedulers, scalers."""
        captures = [
            entries(group, skip=("params",))
            for optimizer in self.optimizers
            for group in optimizer.param_groups
        ]
        captures += [each for optimizer in self.optimizers for each in optimizer_extras(optimizer)]
        captures += [attributes(s) for s in self.schedulers]
        captures += [scaler_state(s) for s in self.scalers if s.is_enabled()]
        return captures

    def capture_small(self) -> Callable[[], None]:
        """Puts rates, schedulers and scalers back to how they are now."""
        return functools.partial(put_back, *[capture() for capture in self.small_captures()])

    def capture_averages(self) -> list[Callable[[], None]]:
        """The same for running averages of the weights."""
        return undo_of(t for _, t in self._average_parts()) if self.averages else []

    def _average_parts(self) -> Iterator[tuple[str, Tensor]]:
        for name, module in self.averages.items():
            for key, value in (*module.named_parameters(), *module.named_buffers()):
                yield join(name, key), value

    def snapshot_bytes(self) -> int:
        tensors = [t for _, t in self.parameters()] + [t for _, t in self.buffers]
        per_param = sum(t.numel() * t.element_size() for t in tensors)
        averages = sum(t.numel() * t.element_size() for _, t in self.average_tensors())
        return 3 * per_param + averages

    def clear_grads(self) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = None

    def take_grads(self, optimizer: Optimizer | None = None) -> Callable[[], None]:
        """All gradients, or one optimizer's, are taken off their parameters; returns what hangs them back."""
        if optimizer is None:
            params = list({id(p): p for _, p in self.parameters()}.values())
        else:
            params = [p for g in optimizer.param_groups for p in g["params"]]
        taken = [(p, p.grad) for p in params]

        def put() -> None:
            for p, grad in taken:
                p.grad = grad

        for p, grad in taken:
            if grad is not None:
                p.grad = None
        return put
