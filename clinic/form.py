"""The form of a case, the loop that trains it, and the finding of all cases and controls.

Nothing here, and nothing in a case, knows of stayfinite: the cases are what it is measured by.
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

MARKER = "# <- born here"
"""The trailing comment of the line that is the truth."""

FROM_MARKER = "<marker>"
"""What a case writes for `Truth.line`; `all_cases` puts the number of the marked line there."""

PHASES = ("data", "forward", "loss", "backward", "parameter", "optimizer", "checkpoint", "resume")
SPLITS = ("dev", "held_out")
CAUSES = (
    "low_precision_overflow",
    "low_precision_underflow",
    "log_of_zero",
    "domain_error",
    "zero_denominator",
    "empty_reduction",
    "singular_gradient",
    "masked_branch_leak",
    "fully_masked_row",
    "exp_overflow",
    "infeasible_target",
    "degenerate_linalg",
    "bad_input_data",
    "bad_preprocessing",
    "uninitialized_memory",
    "bad_initialization",
    "lr_divergence",
    "exploding_gradient",
    "optimizer_denominator",
    "bad_schedule",
    "loss_scaling",
    "corrupt_checkpoint",
    "resume_mismatch",
    "hardware_or_nondeterminism",
)


@dataclass
class Case:
    """One training: what `plain_loop` needs, and nothing that tells whether it is broken."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Iterable[Any]
    """A DataLoader with a seeded generator, or a list of batches; can be iterated again."""
    loss_fn: Callable[[nn.Module, Any], torch.Tensor]
    """`loss_fn(model, batch)` gives the scalar loss; autocast, if any, is entered inside it."""
    scheduler: Any = None
    """Stepped after every batch."""
    scaler: Any = None
    clip_norm: float | None = None
    epochs: int = 1
    cleanup: Callable[[], None] | None = None

    def close(self) -> None:
        """Undo what `build` left outside of the case: files, global flags."""
        if self.cleanup is not None:
            self.cleanup()
            self.cleanup = None


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Where the first non-finite value of a case is born, and why.

    `op`, `phase` and `cause` are single names; `op` and `phase` are tuples only where two answers
    are equally right.
    """

    step: int
    phase: str | tuple[str, ...]
    op: str | tuple[str, ...] | None
    module: str | None
    line: int | str | None
    cause: str
    split: str

    def __post_init__(self) -> None:
        phases = self.phase if isinstance(self.phase, tuple) else (self.phase,)
        for name, value, valid in [
            *(("phase", p, PHASES) for p in phases),
            ("cause", self.cause, CAUSES),
            ("split", self.split, SPLITS),
        ]:
            if value not in valid:
                raise ValueError(f"`{name}` is {value!r}; valid are: {', '.join(valid)}")
        if isinstance(self.line, str) and self.line != FROM_MARKER:
            raise ValueError(f"`line` must be {FROM_MARKER!r}, a number or None, got {self.line!r}")

    @property
    def phases(self) -> tuple[str, ...]:
        """All phases that are right."""
        return self.phase if isinstance(self.phase, tuple) else (self.phase,)

    @property
    def ops(self) -> tuple[str | None, ...]:
        """All operators that are right."""
        return self.op if isinstance(self.op, tuple) else (self.op,)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A case or a control as found on disk; a control has neither truth nor fixed twin."""

    name: str
    path: pathlib.Path
    doc: str
    build: Callable[..., Case]
    build_fixed: Callable[..., Case] | None = None
    truth: Truth | None = None


def resolve_line(path: str | pathlib.Path) -> int | None:
    """The 1-based number of the line that carries the marker; None when no line does."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    marked = [i for i, text in enumerate(lines, 1) if text.rstrip().endswith(MARKER)]
    if len(marked) > 1:
        raise ValueError(f"{path}: {len(marked)} lines are marked {MARKER!r}: {marked}; mark one")
    return marked[0] if marked else None


def all_cases() -> list[Entry]:
    """Every broken training in `clinic/cases`, sorted by name, with the line of its truth."""
    return [_load("cases", path) for path in _files("cases")]


def all_controls() -> list[Entry]:
    """Every healthy but alarming training in `clinic/controls`, sorted by name."""
    return [_load("controls", path) for path in _files("controls")]


def _files(folder: str) -> list[pathlib.Path]:
    found = (pathlib.Path(__file__).parent / folder).glob("*.py")
    return sorted(p for p in found if not p.name.startswith("_"))


def _load(folder: str, path: pathlib.Path) -> Entry:
    module = importlib.import_module(f"clinic.{folder}.{path.stem}")
    common = {"name": path.stem, "path": path, "doc": (module.__doc__ or "").strip()}
    if folder == "controls":
        return Entry(build=module.build, **common)
    truth: Truth = module.TRUTH
    marked = resolve_line(path)
    if truth.line == FROM_MARKER:
        if marked is None:
            raise ValueError(f"{path}: no line ends with {MARKER!r}; mark the line of the truth")
        truth = replace(truth, line=marked)
    elif marked is not None:
        raise ValueError(f"{path}:{marked} is marked, but the truth has line={truth.line!r}")
    return Entry(build=module.build, build_fixed=module.build_fixed, truth=truth, **common)


During = Callable[[str, int, Any], AbstractContextManager[Any]]


def _unwatched(part: str, step: int, value: Any) -> AbstractContextManager[Any]:
    return contextlib.nullcontext()


def steps(case: Case, during: During = _unwatched) -> Iterator[tuple[int, torch.Tensor]]:
    """Train, one batch at a time, and give each step's number and loss once it is applied.

    `during(part, step, value)` gives the context for the parts of a step: "forward" (value: the
    batch), "backward" (value: the loss) and "update" (value: None).
    """
    step = 0
    for _ in range(case.epochs):
        for batch in case.loader:
            case.optimizer.zero_grad()
            with during("forward", step, batch):
                loss = case.loss_fn(case.model, batch)
            with during("backward", step, loss):
                (loss if case.scaler is None else case.scaler.scale(loss)).backward()
            with during("update", step, None):
                _update(case)
            yield step, loss.detach()
            step += 1


def _update(case: Case) -> None:
    if case.scaler is not None:
        case.scaler.unscale_(case.optimizer)
    if case.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(case.model.parameters(), case.clip_norm)
    if case.scaler is not None:
        case.scaler.step(case.optimizer)
        case.scaler.update()
    else:
        case.optimizer.step()
    if case.scheduler is not None:
        case.scheduler.step()


def plain_loop(case: Case, max_steps: int | None = None) -> list[float]:
    """Train as anybody would, with no protection at all, and return the losses."""
    losses = []
    for step, loss in steps(case):
        losses.append(float(loss))
        if max_steps is not None and step + 1 >= max_steps:
            break
    return losses
