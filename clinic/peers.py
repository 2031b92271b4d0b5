"""What the tools at hand say of the same cases: torch's anomaly mode, transformers' debugger, torchlens."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from clinic.form import Entry, steps

_NODE = re.compile(r"Function '(\w+)' returned nan values")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclass(frozen=True)
class PeerScore:
    """What was right. None: the tool does not say such a thing."""

    noticed: bool
    op: bool | None = None
    line: bool | None = None
    module: bool | None = None


def detect_anomaly(entry: Entry) -> PeerScore:
    """`torch.autograd.set_detect_anomaly(True)`: raises where a backward returns a NaN."""
    truth = entry.truth
    assert truth is not None
    said: list[str] = []

    def listen(case: Any) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with torch.autograd.set_detect_anomaly(True):
                    _train(case, seen)
            finally:
                said.extend(str(w.message) for w in caught)

    seen: list[int] = []
    error = _run(entry, listen)
    match = _NODE.search(error or "")
    if match is None:
        return PeerScore(False, False, False)
    at_step = len(seen) == truth.step
    places = [(m["file"], int(m["line"])) for text in said for m in _FRAME.finditer(text)]
    own = [line for file, line in places if file.endswith(entry.path.name)]
    has_line = bool(own) and truth.line is not None and own[-1] == truth.line
    return PeerScore(at_step, at_step and match[1] in truth.ops, at_step and has_line)


def debug_underflow_overflow(entry: Entry) -> PeerScore | None:
    """`transformers.debug_utils.DebugUnderflowOverflow`: raises after a module with NaN or Inf.

    None where transformers is not installed.
    """
    try:
        from transformers.debug_utils import DebugUnderflowOverflow
    except ImportError:
        return None
    truth = entry.truth
    assert truth is not None
    seen: list[int] = []
    said = io.StringIO()

    def listen(case: Any) -> None:
        DebugUnderflowOverflow(case.model)
        with contextlib.redirect_stdout(said):
            _train(case, seen)

    error = _run(entry, listen)
    if error is None or "nan detected" not in error:
        return PeerScore(False, module=False)
    at_step = len(seen) == truth.step
    named = truth.module is not None and _last_frame(said.getvalue()) == truth.module
    return PeerScore(at_step, module=at_step and named)


def torchlens(entry: Entry) -> PeerScore | None:
    """`torchlens.debug.find_nan` on the forward and loss of the very batch that fails; None where it is
    not installed. It is not made to watch a training, so it is told when to look.
    """
    try:
        from torchlens.debug import find_nan
    except ImportError:
        return None
    truth = entry.truth
    assert truth is not None
    found: list[Any] = []

    def listen(case: Any) -> None:
        @contextlib.contextmanager
        def during(part: str, step: int, value: Any) -> Iterator[None]:
            if part == "forward" and step == truth.step:
                found.append(find_nan(ForwardAndLoss(case), [value]))
                raise StopIteration
            yield

        for _ in steps(case, during):
            pass

    _run(entry, listen)
    if not found or not found[0].found:
        return PeerScore(False, line=False)
    place = f"{entry.path.name}:{truth.line}"
    return PeerScore(True, line=(found[0].source_line or "").endswith(place))


class ForwardAndLoss(torch.nn.Module):
    """A training step's forward and loss as one module, for tools that take a module."""

    def __init__(self, case: Any) -> None:
        super().__init__()
        self.model = case.model
        self.loss_fn = case.loss_fn

    def forward(self, batch: Any) -> torch.Tensor:
        return self.loss_fn(self.model, batch)


def _last_frame(text: str) -> str | None:
    """The module of the last frame that was printed: a line of a path and a class, far indented."""
    heads = [t for t in text.splitlines() if t.startswith(" " * 18) and "***" not in t]
    parts = heads[-1].split() if heads else []
    if not parts:
        return None
    return parts[0] if len(parts) == 2 else ""


def _train(case: Any, seen: list[int]) -> None:
    """The plain loop, which forgets nothing: `seen` grows with every step that was applied."""
    for step, _ in steps(case):
        seen.append(step)


def _run(entry: Entry, listen: Callable[[Any], None]) -> str | None:
    rng = torch.get_rng_state()
    case = entry.build()
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            listen(case)
    except Exception as e:
        return str(e)
    finally:
        case.close()
        torch.set_rng_state(rng)
    return None
