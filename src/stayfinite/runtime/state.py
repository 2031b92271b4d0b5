"""The training's objects: their names, and how to restore them."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..locate.modules import inner_module
from ..locate.trace import SourceRef
from ..numerics.health import FiniteFlag, is_finite, magnitudes
from ..putting_back import put_back
from ..recover.snapshot import Snapshot
from .batches import named_tensors
from .buffers import Buffers, join
from .companions import Companions, undo_of
from .discover import Auxiliaries
from .outside_modes import outside_user_code
from .undo import Capture, attributes, by_state_dict, entries, modes, optimizer_extras, scaler_state
from .weak import WeakList

__all__ = ["TrainState"]


class TrainState:
    """Models, optimizers, schedulers and scalers of one training, given or discovered.

    References are weak: the script can delete its objects, and the copies of their state are deleted with the
    last optimizer.
    """

    def __init__(self) -> None:
        self._roots: dict[str, weakref.ref[nn.Module]] = {}
        self.optimizers: WeakList[Optimizer] = WeakList(self._optimizer_gone)
        self.schedulers: WeakList[Any] = WeakList()
        self.scalers: WeakList[Any] = WeakList()
        self.generation = 0
        """Incremented when an optimizer is deleted: older copies belong to another training."""
        self.num_changes = 0
        """Incremented with every change after which `OrdinaryIteration` has to test its conditions again."""
        self.on_over: Callable[[], Any] = lambda: None
        """Called when the last optimizer is deleted."""
        self.averages: dict[str, nn.Module] = {}
        """Running averages of the weights, which the loop updates itself."""
        self.others: dict[str, Any] = {}
        """Other objects with `state_dict` and `load_state_dict` that a rollback restores."""
        self.auxiliaries: Auxiliaries | None = None
        """Objects found together with the models, for the window being opened."""
        self.snapshot = Snapshot()
        self.initially_bad: set[str] = set()
        self.first_sizes: dict[str, tuple[float, float]] = {}
        """(largest magnitude, norm) of each parameter before the first step."""
        self.first_lrs: tuple[float, ...] = ()
        self.companions = Companions()
        self.buffers = Buffers(self._roots, lambda: self.companions.training)
        self._flag: FiniteFlag | None = None
        self._names: dict[int, str] | None = None
        self._rates: list[Any] = []
        self._lrs: tuple[float, ...] = ()

    @property
    def roots(self) -> dict[str, nn.Module]:
        """The models that still exist, by name."""
        alive = {name: ref() for name, ref in self._roots.items()}
        return {name: module for name, module in alive.items() if module is not None}

    def add_root(self, module: nn.Module, name: str | None = None) -> None:
        inner = inner_module(module)
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
        """An optimizer was deleted. The last one ends the training, so everything is released.

        If others remain, one of them may be in a step, so the copies are kept until the next window.
        """
        self.generation += 1
        if not self.optimizers:
            self.release_all()
            self.on_over()

    def forget_gone(self) -> None:
        """Drop the copies, which belong to another training; new ones follow."""
        self.snapshot.drop()
        self.buffers.clear()
        self._forget_caches()

    def add_optimizer(self, optimizer: Optimizer) -> None:
        if not any(o is optimizer for o in self.optimizers):
            self.optimizers.append(optimizer)
            self._forget_caches()

    def release(self, optimizer: Optimizer) -> None:
        """Stop tracking an optimizer and its model: another training uses them."""
        self.optimizers.remove(optimizer)
        moved = {id(p) for o in self.optimizers for g in o.param_groups for p in g["params"]}
        theirs = {id(p) for g in optimizer.param_groups for p in g["params"]} - moved
        for name, root in self.roots.items():
            params = {id(p) for p in root.parameters()}
            if params & theirs and not params & moved:
                del self._roots[name]
        self.generation += 1
        self.snapshot.drop()  # restoring it would change the other training
        self._forget_caches()

    def add_scheduler(self, scheduler: Any) -> None:
        if not any(s is scheduler for s in self.schedulers):
            self.schedulers.append(scheduler)
            if self.snapshot.is_taken:
                self.snapshot.add(attributes(scheduler))

    def add_scaler(self, scaler: Any) -> None:
        if not any(s is scaler for s in self.scalers):
            self.scalers.append(scaler)
            if self.snapshot.is_taken and scaler.is_enabled():
                self.snapshot.add(scaler_state(scaler))

    def take_auxiliaries(self) -> Auxiliaries | None:
        found, self.auxiliaries = self.auxiliaries, None
        return found

    def adopt_companions(self, found: Auxiliaries, others: set[int], num_applied: int) -> None:
        moved = (p for o in self.optimizers for g in o.param_groups for p in g["params"])
        known = others | {id(m) for m in (*self.roots.values(), *self.optimizers)}
        self.companions.adopt(found, moved, known, num_applied)
        self._forget_caches()

    @outside_user_code
    def adopt_averages(self, modules: Iterable[nn.Module]) -> bool:
        """Track averages of our models (`AveragedModel`); True if there was a new one."""
        known = [id(m) for m in (*self.averages.values(), *self.roots.values())]
        own = [[p.shape for p in root.parameters()] for root in self.roots.values()]
        new = [
            m for m in modules if id(m) not in known and [p.shape for p in m.parameters()] in own
        ]
        for module in new:
            self.averages[f"average{len(self.averages) or ''}"] = module
        return bool(new)

    def release_all(self) -> None:
        """Release all objects of the training, which is over."""
        for each in (self._roots, self.optimizers, self.schedulers, self.scalers, self.buffers):
            each.clear()
        self.averages.clear()
        self.companions.clear()
        self.snapshot.drop()
        self._forget_caches()

    def _forget_caches(self) -> None:
        self._names = None
        self.buffers.search_again()
        self.num_changes += 1

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter of the models, then those that only an optimizer has."""
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
            for p, entry in optimizer.state.items():
                owner = self.name_of(p) if isinstance(p, Tensor) else type(p).__name__
                if not isinstance(entry, dict):
                    continue
                yield from ((f"{owner}:{k}", v) for k, v in entry.items() if isinstance(v, Tensor))

    def average_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._average_parts()
        for name, other in self.others.items():
            yield from named_tensors(other.state_dict(), name)

    def grads(self, optimizers: list[Optimizer] | None = None) -> list[tuple[Tensor, Tensor]]:
        """(parameter, gradient) of everything that the optimizers update."""
        return [
            (p, p.grad)
            for optimizer in (self.optimizers if optimizers is None else optimizers)
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]

    def lrs(self) -> tuple[float, ...]:
        """The learning rate of every group; the same tuple object until a rate changes."""
        rates = []
        for ref in self.optimizers.refs:
            for group in getattr(ref(), "param_groups", ()):
                rates.append(group.get("lr"))
        if rates != self._rates:
            kept = [r for r in rates if isinstance(r, (int, float, Tensor))]
            # A rate in a tensor changes in place, so it has to be read each time.
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
        """Whether an enabled GradScaler is in use."""
        return any(s.is_enabled() for s in self.scalers)

    def scale(self) -> float | None:
        for scaler in self.scalers:
            if scaler.is_enabled() and scaler._scale is not None:
                return float(scaler.get_scale())
        return None

    def sources(self) -> list[SourceRef]:
        """All tensors that existed before the step, for the trace."""
        return [
            *(SourceRef("parameter", n, p) for n, p in self.parameters()),
            *(SourceRef("buffer", n, b) for n, b in self.buffers),
            *(SourceRef("optimizer_state", n, t) for n, t in self.optimizer_state()),
        ]

    @outside_user_code
    def bad_state(self, ignore_initial: bool = True) -> list[tuple[str, str, Tensor]]:
        """(kind, name, tensor) of everything that is not finite; one fused pass if everything is finite."""
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

    @outside_user_code
    @torch.no_grad()
    def note_initial(self) -> None:
        """Note what is not finite before the first step (a mask of -inf by design), so that it is not reported later."""
        self.initially_bad = {f"{k} {n}" for k, n, _ in self.bad_state(ignore_initial=False)}
        self.first_sizes = {
            n: (float(magnitudes([p])[0]), float(torch.linalg.vector_norm(p)))
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
        """Copy everything that a step can change; returns the seconds that it is charged for."""
        start = time.perf_counter()
        named = self._moved()
        dicts: list[dict[Any, Any]] = [optimizer.state for optimizer in self.optimizers]
        tensors, names = [t for _, t in named], [n for n, _ in named]
        self.snapshot.take(tag, tensors, self.snapshot_captures(), dicts, names)
        return max(time.perf_counter() - start, self.snapshot.least_seconds)

    def retake_small(self) -> None:
        """Update rates and schedules in the snapshot, if they were set without a step."""
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

    @outside_user_code
    def versions(self) -> list[tuple[Tensor, int]]:
        """Each tensor with its version counter, which shows later whether it was written to."""
        named = [*self._moved(), *self.average_tensors()]
        return [(t, t._version) for _, t in named if not t.is_inference()]

    def is_still_finite(self, versions: list[tuple[Tensor, int]]) -> bool:
        """Whether all tensors written since then are finite; the others were checked then."""
        known = {id(t): version for t, version in versions}
        written = [t for t, v in self.versions() if known.get(id(t)) != v]
        return not written or not self.bad_state()

    def snapshot_captures(self) -> list[Capture]:
        """Captures of everything in a snapshot that is not a tensor."""
        captures = [*self.small_captures(), modes(self.roots.values())]
        for optimizer in self.optimizers:
            captures += [entries(e) for e in optimizer.state.values() if isinstance(e, dict)]
        return captures + [by_state_dict(other) for other in self.others.values()]

    def scale_lrs(self, factor: float) -> None:
        """Multiply all learning rates by `factor`, including the base rates of schedulers."""
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
        """Captures of rates, schedulers and scalers."""
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
        """Returns a function that restores rates, schedulers and scalers to their current values."""
        return functools.partial(put_back, *[capture() for capture in self.small_captures()])

    def capture_averages(self) -> list[Callable[[], None]]:
        """Returns functions that restore the running averages of the weights."""
        return undo_of(t for _, t in self._average_parts()) if self.averages else []

    def _average_parts(self) -> Iterator[tuple[str, Tensor]]:
        for name, module in self.averages.items():
            for key, value in (*module.named_parameters(), *module.named_buffers()):
                yield join(name, key), value

    def clear_grads(self) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = None

    def take_grads(self, optimizer: Optimizer | None = None) -> Callable[[], None]:
        """Detach all gradients, or one optimizer's, from their parameters; returns a function that restores them."""
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
