"""Check every case's truth with a plain loop and a small operator trace; knows nothing of stayfinite.

python -m clinic.verify [NAME ...]

"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from clinic.form import Case, Entry, all_cases, all_controls, steps
from clinic.trace import Birth, Trace, is_finite, named_state, watching


@contextlib.contextmanager
def _noting_restores(restored: set[int]) -> Iterator[None]:
    """Remember what `load_state_dict` filled: that state came from a checkpoint."""
    load_model, load_optimizer = nn.Module.load_state_dict, torch.optim.Optimizer.load_state_dict

    def model(self: nn.Module, state: Any, *args: Any, **kwargs: Any) -> Any:
        out = load_model(self, state, *args, **kwargs)
        own = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        restored.update(id(own[name]) for name in state if name in own)
        return out

    def optimizer(self: Any, state: Any) -> None:
        load_optimizer(self, state)
        restored.add(id(self))

    nn.Module.load_state_dict = model
    torch.optim.Optimizer.load_state_dict = optimizer
    try:
        yield
    finally:
        nn.Module.load_state_dict = load_model
        torch.optim.Optimizer.load_state_dict = load_optimizer


@dataclass
class Finding:
    """What the loop saw: the step, the symptom, and the births that feed it."""

    step: int
    symptom: str
    births: list[Birth] = field(default_factory=list)


@dataclass
class _Watch:
    """The context for each part of the step to watch; ends the loop by raising at a symptom."""

    entry: Entry
    case: Case
    restored: set[int]
    step: int
    trace: Trace | None = None
    loss: torch.Tensor | None = None
    before: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def during(self, part: str, step: int, value: Any) -> Iterator[None]:
        if step < self.step:
            yield
            return
        if part == "forward":
            self.trace = Trace(self.entry, self.case, self.restored)
            self.trace.batch(value)
            self.before = {n for _, n, t in named_state(self.case) if not is_finite(t)}
        assert self.trace is not None
        self.trace.part = part
        with watching(self.trace, self.case.model):
            yield
        if part == "forward":
            return
        if part == "backward":
            self.loss = value.detach()
            self._look(step, "loss", {"loss": self.loss})
            if self.case.scaler is None:
                grads = {n: p.grad for n, p in self.case.model.named_parameters()}
                self._look(step, "gradient", {n: g for n, g in grads.items() if g is not None})
        else:
            state = {n: t for _, n, t in named_state(self.case) if n not in self.before}
            self._look(step, "state", state)

    def _look(self, step: int, kind: str, tensors: dict[str, torch.Tensor]) -> None:
        bad = {name: t for name, t in tensors.items() if not is_finite(t)}
        if bad and self.trace is not None:
            births = frozenset().union(*(self.trace.of(t).births for t in bad.values()))
            found = sorted(births, key=lambda b: b.order)
            raise _Found(Finding(step, f"{kind} {next(iter(bad))}", found))


class _Found(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.symptom)
        self.finding = finding


def first_birth(entry: Entry, step: int = 0) -> Finding | None:
    """Train, from `step` on under the trace, until something is not finite; None if nothing ever is.

    The trace is slow: give the step at which `run` failed, and only that one is traced.
    """
    restored: set[int] = set()
    with _noting_restores(restored):
        case = entry.build(seed=0)
    watch = _Watch(entry, case, restored, step)
    try:
        for _ in steps(case, watch.during):
            pass
    except _Found as found:
        return found.finding
    finally:
        case.close()
    return None


def run(build: Callable[..., Case]) -> tuple[list[float], list[str]]:
    """Train without any trace: the losses, and what was not finite at the first step that failed."""
    case = build(seed=0)
    known = {n for _, n, t in named_state(case) if not is_finite(t)}
    losses, bad = [], []
    try:
        for _, loss in steps(case):
            losses.append(float(loss))
            bad = [] if math.isfinite(losses[-1]) else ["loss"]
            bad += [n for _, n, t in named_state(case) if n not in known and not is_finite(t)]
            if case.scaler is None:
                grads = ((n, p.grad) for n, p in case.model.named_parameters())
                bad += [f"{n}.grad" for n, g in grads if g is not None and not is_finite(g)]
            if bad:
                break
        return losses, bad
    finally:
        case.close()


def _few(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def problems(entry: Entry) -> list[str]:
    """Everything in which a case is not as its truth says; empty when it is."""
    if entry.truth is None or entry.build_fixed is None:
        return problems_of_control(entry)
    return [*_problems_of_truth(entry), *_problems_of_fixed(entry)]


def _problems_of_truth(entry: Entry) -> list[str]:
    truth = entry.truth
    assert truth is not None
    losses, bad = run(entry.build)
    if not bad:
        return ["the broken training stays finite"]
    found = first_birth(entry, len(losses) - 1)
    again = first_birth(entry, len(losses) - 1)
    if found is None:
        return ["the broken training stays finite under the trace"]
    out = []
    if found != again:
        out.append(f"two builds differ: {found} and {again}")
    if len(losses) - 1 != found.step or found.step != truth.step:
        out.append(
            f"step: {found.step} traced, {len(losses) - 1} in a plain loop, truth {truth.step}"
        )
    if not found.births:
        return [*out, f"no birth found for {found.symptom}"]
    birth = found.births[0]
    if "parameter" in truth.phases and birth.from_buffers:
        birth = min(birth.from_buffers, key=lambda b: b.order)
    phases = {birth.phase}
    if truth.cause == "resume_mismatch":
        phases.add("resume")
    if not phases & set(truth.phases):
        out.append(f"phase: {birth.phase}, truth {truth.phase}")
    out += [
        f"{name}: {seen!r}, truth {getattr(truth, name)!r}"
        for name, seen, right in [
            ("op", birth.op, truth.ops),
            ("module", birth.module, (truth.module,)),
            ("line", birth.line, (truth.line,)),
        ]
        if seen not in right
    ]
    return [f"{p} ({found})" for p in out]


def _problems_of_fixed(entry: Entry) -> list[str]:
    assert entry.build_fixed is not None and entry.truth is not None
    losses, bad = run(entry.build_fixed)
    again, _ = run(entry.build_fixed)
    out = []
    if bad:
        return [f"fixed twin: {_few(bad)} not finite at step {len(losses) - 1}"]
    if len(losses) <= entry.truth.step:
        out.append(f"fixed twin: {len(losses)} steps do not reach step {entry.truth.step}")
    if losses != again:
        out.append("fixed twin: two builds give different losses")
    # An odd batch may cost much once; the training must have come through it.
    start, worst, end = abs(losses[0]), max(map(abs, losses)), abs(losses[-1])
    if worst > 100 * start + 100 or end > 10 * start + 10:
        out.append(f"fixed twin: the loss goes from {start:.4g} over {worst:.4g} to {end:.4g}")
    return out


def problems_of_control(entry: Entry) -> list[str]:
    """A control must train with a finite loss and finite state, the same way twice."""
    losses, bad = run(entry.build)
    again, _ = run(entry.build)
    out = [f"{_few(bad)} not finite at step {len(losses) - 1}"] if bad else []
    return out if losses == again else [*out, "two builds give different losses"]


def main(names: list[str]) -> int:
    entries = [*all_cases(), *all_controls()]
    unknown = sorted(set(names) - {e.name for e in entries})
    if unknown:
        known = ", ".join(e.name for e in entries)
        print(f"no such case: {', '.join(unknown)}; there are: {known}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)  # models this small only lose by threads
    num_bad = 0
    for entry in entries:
        if names and entry.name not in names:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                wrong = problems(entry)
            except Exception as e:  # the other cases are still to be checked
                wrong = [f"{type(e).__name__}: {e}"]
        num_bad += bool(wrong)
        print(f"{'wrong' if wrong else 'ok':5}  {entry.name}  {_short(entry)}")
        for text in wrong:
            print(f"       {text}")
    return 1 if num_bad else 0


def _short(entry: Entry) -> str:
    if entry.truth is None:
        return "control"
    t = dataclasses.asdict(entry.truth)
    return " ".join(f"{k}={v}" for k, v in t.items())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
