"""A fix that turns untrained weights into parameters, in addition to the fix of the failing line.

The line that makes such a tensor has already run, so its effect is run: for some steps after the failing one, the optimizer
updates the tensors, from their own values and from usual initial values, and the loss is compared with the same steps without.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...records import Fix, Proof
from ...remedies import Remedy, Source, apply, apply_patch, as_parameters, read_patch, unified_diff
from ...runtime.window import Replay, ReplayResult, Window
from ...sandbox.compute import computing_only
from ..budget import Budget
from ..laboratory import Laboratory
from ..replays.changed_source import ChangedSource
from .setting_change import shown_path
from .where_set import source_of

__all__ = ["with_parameters"]

_STEPS = 18
_FEWEST = 6
_NUM_BATCHES = 6
_LOWER = 0.98
"""A loss counts as lower below this share of the other."""

Leaf = tuple[str, nn.Module, Tensor]
_Made = tuple[str, str, str, Remedy]
"""A file, its text, the text with all changes, and the change of such lines."""


def with_parameters(
    lab: Laboratory, made: tuple[Fix, ...], leaves: list[Leaf], seconds: float
) -> Generator[Replay, ReplayResult, tuple[Fix, ...]]:
    """The fixes, with such tensors as parameters in the proved one if that has lowered the loss."""
    repaired = next((f for f in made if f.status == "proved" and f.diff and f.file), None)
    if repaired is None or not lab.can_replay or lab.investigation.engine.ranks.has_others:
        return made
    solved = lab.investigation.engine.known.solved
    key = ("parameters", repaired.diff)
    if key not in solved:
        if any(k[0] == "parameters" for k in solved):
            return made  # they are part of another change of this run
        found = yield from _search(lab, repaired, leaves, seconds)
        solved[key] = (None, found, lab.window.step)
    _, (first, *others), _ = solved[key]
    if first is None:
        return made
    proof = repaired.proof or Proof()
    notes = [n for n in (proof.note, first.proof.note) if n]
    first = replace(first, proof=replace(proof, note="; ".join(notes)))
    return tuple(first if f is repaired else f for f in made) + tuple(others)


def _search(
    lab: Laboratory, repaired: Fix, leaves: list[Leaf], seconds: float
) -> Generator[Replay, ReplayResult, tuple[Fix | None, ...]]:
    """The better of the two initial values as fixes, that of the repaired file first."""
    change = _as_source(repaired)
    optimizer = _optimizer(lab, leaves)
    if change is None or optimizer is None:
        return (None,)
    with computing_only():
        budget = Budget(seconds)
        plain = yield from _losses(lab, change, None, _STEPS, budget)
        number = len(plain)
        best: tuple[list[float], list[_Made]] | None = None
        for is_fresh in (False, True):
            remedies = _remedies(change, leaves, is_fresh)
            if remedies is None or number < _FEWEST:
                continue
            held = _Held(optimizer, leaves, is_fresh)
            budget = Budget(2 * seconds)
            losses = yield from _losses(lab, change, held, number, budget)
            if len(losses) < number or not held.is_reached or _end(losses) > _LOWER * _end(plain):
                continue
            # A model soon learns a few batches from any start, so the path matters.
            if best is None or _mean(losses) < _LOWER * _mean(best[0]):
                best = (losses, remedies)
    if best is None:
        return (None,)
    note = (
        f"{number} steps with these tensors trained end at a loss of {_end(best[0]):.3g}, "
        f"without at {_end(plain):.3g}"
    )
    return _fixes(
        repaired, change, best[1], Proof(is_step_finite=True, num_after=number, note=note)
    )


def _as_source(fix: Fix) -> ChangedSource | None:
    """The proved change, to be run once more."""
    source = source_of(fix.file or "")
    if source is None or fix.diff is None or fix.file is None:
        return None
    with contextlib.suppress(Exception):
        after = apply_patch(source.text, read_patch(fix.diff))
        return ChangedSource(fix.file, source.text, after)
    return None


def _optimizer(lab: Laboratory, leaves: list[Leaf]) -> Optimizer | None:
    """The optimizer that would get them: it has all parameters of the model, in one group."""
    optimizers, roots = list(lab.state.optimizers), list(lab.state.roots.values())
    if len(optimizers) != 1 or len(roots) != 1:
        return None
    optimizer, root = optimizers[0], roots[0]
    if len(optimizer.param_groups) != 1 or any(m not in root.modules() for _, m, _ in leaves):
        return None
    held = {id(p) for p in optimizer.param_groups[0]["params"]}
    return optimizer if all(id(p) in held for p in root.parameters()) else None


def _remedies(change: ChangedSource, leaves: list[Leaf], is_fresh: bool) -> list[_Made] | None:
    """For each file the change of its lines; None if one of the tensors is made in another way."""
    files: dict[str, list[tuple[str, str]]] = {}
    for name, module, _ in leaves:
        try:
            file = inspect.getsourcefile(type(module))
        except TypeError:
            return None
        files.setdefault(file or "", []).append((type(module).__name__, name.rpartition(".")[2]))
    found: list[_Made] = []
    for file, owners in files.items():
        source = source_of(file)
        if source is None:
            return None
        base = Source(change.after) if file == change.file else source
        remedy = as_parameters(base, owners, is_fresh)
        if remedy is None:
            return None
        found.append((file, source.text, apply(base.text, [remedy])[0], remedy))
    return found


def _losses(
    lab: Laboratory, change: ChangedSource, held: _Held | None, number: int, budget: Budget
) -> Generator[Replay, ReplayResult, list[float]]:
    """Windows to apply: this step, then earlier batches, repeatedly."""
    windows = [lab.window, *_others(lab)]
    losses: list[float] = []
    with lab.restored():
        for window in itertools.islice(itertools.cycle(windows), number):
            lab.next_step(window)
            contexts: list[AbstractContextManager[Any]] = [] if held is None else [held.during()]
            result = yield Replay(window=window, change=change, is_applied=True, contexts=contexts)
            if result.failure is not None or not result.is_complete or not result.losses:
                return []
            losses.append(result.losses[-1])
            lab.settle()
            if budget.is_over:
                break
    return losses


def _others(lab: Laboratory) -> list[Window]:
    log = lab.investigation.engine.log
    kept = {id(w): w for w in [*log.recent, *log]}.values()
    found = [w for w in kept if w is not lab.window and lab.investigation.vehicle.can_run(w)]
    return [w for w in found if w.step < lab.window.step][-_NUM_BATCHES + 1 :]


def _end(losses: list[float]) -> float:
    """The mean over the last third."""
    return _mean(losses[-max(1, len(losses) // 3) :])


def _mean(losses: list[float]) -> float:
    return sum(losses) / len(losses) if losses else float("inf")


def _fixes(
    repaired: Fix, change: ChangedSource, found: list[_Made], proof: Proof
) -> tuple[Fix, ...]:
    """One diff for the repaired file, and one for each other file."""
    both, others = repaired, []
    for file, before, after, remedy in found:
        diff = unified_diff(shown_path(file), before, after)
        if file == change.file:
            both = replace(
                repaired,
                title=f"{repaired.title}; and {remedy.title}",
                why=f"{repaired.why}; {remedy.why}",
                remedy=f"{repaired.remedy}+{remedy.name}",
                diff=diff,
            )
            continue
        fix = Fix(
            title=remedy.title, why=remedy.why, status="proved", file=file, line=remedy.line,
            diff=diff, proof=proof, remedy=remedy.name,
            file_sha256=hashlib.sha256(before.encode()).hexdigest(),
        )  # fmt: skip
        others.append(fix)
    return (replace(both, proof=proof), *others)


class _Held:
    """In each replay, make the tensors parameters of their modules and of the optimizer."""

    def __init__(self, optimizer: Optimizer, leaves: list[Leaf], is_fresh: bool) -> None:
        self._optimizer = optimizer
        self._leaves = leaves
        self._values = [_start(t) if is_fresh else t.detach().clone() for _, _, t in leaves]
        self._moments: list[Any] = [None for _ in leaves]
        self.is_reached = True
        """Whether each of them has received a gradient."""

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        tensors = [t for _, _, t in self._leaves]
        kept = [(t.detach().clone(), t.grad) for t in tensors]
        group, state = self._optimizer.param_groups[0]["params"], self._optimizer.state
        try:
            for (name, module, t), value, moments in zip(self._leaves, self._values, self._moments):
                _write(t, value)
                t.grad = None
                module._parameters[name.rpartition(".")[2]] = t  # type: ignore[assignment]
                group.append(t)
                if moments is not None:
                    state[t] = moments
            yield
        finally:
            self.is_reached = self.is_reached and all(t.grad is not None for t in tensors)
            self._values = [t.detach().clone() for t in tensors]
            self._moments = [state.pop(t, None) for t in tensors]
            group[:] = [p for p in group if not any(p is t for t in tensors)]
            for (name, module, t), (value, grad) in zip(self._leaves, kept):
                module._parameters.pop(name.rpartition(".")[2], None)
                _write(t, value)
                t.grad = grad


@torch.no_grad()
def _write(tensor: Tensor, value: Tensor) -> None:
    tensor.copy_(value)


@torch.no_grad()
def _start(tensor: Tensor) -> Tensor:
    value = torch.empty_like(tensor, requires_grad=False)
    return nn.init.xavier_normal_(value) if value.dim() > 1 else value.copy_(tensor)
