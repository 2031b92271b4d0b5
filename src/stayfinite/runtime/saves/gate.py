"""The save gate: no corrupt state overwrites a good checkpoint.

While a gate is open, a good state is written in one step (temporary file, fsync, rename). A bad state is written next to it
under another name. A script that reads a bad state back from a path where no file exists gets that other file. The patches
are in `patches.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...numerics.health import FiniteFlag
from ...saying import say
from ..batches import named_tensors
from ..outside_modes import outside_user_code

if TYPE_CHECKING:  # the checkpoint readers take long to import, and most runs do not need them
    from ...checkpoint import TensorFinding

__all__ = ["MARK", "Refusal", "SaveGate", "bad_tensors", "is_ungated", "refused_name", "ungated"]

MARK = ".nonfinite"


@dataclass(frozen=True)
class Refusal:
    """A save that was refused."""

    path: str
    """The path that the script wanted to write."""
    written_to: str | None
    """The path of the bad state; None if it could not be written."""
    findings: tuple[TensorFinding, ...]
    last_good: str | None
    """The last good checkpoint that this process wrote, or the file that stays at `path`."""

    def describe(self) -> str:
        first = self.findings[0]
        more = f" and {len(self.findings) - 1} more" if len(self.findings) > 1 else ""
        return f"{first.tensor or 'a tensor'}{more} in {self.path} is not finite"


class SaveGate:
    """Checks every state that is saved while it is open."""

    def __init__(
        self,
        on_refusal: Callable[[Refusal], None],
        on_good: Callable[[str], None] = lambda path: None,
        is_ours: Callable[[TensorFinding], bool] = lambda found: True,
    ) -> None:
        self.last_good: str | None = None
        self.refused: dict[str, str] = {}
        """The path that was requested, and the path that was written."""
        self.held: dict[tuple[str, str], str] = {}
        """The last good checkpoint before a refusal. It is protected until a good one of its kind is written, because scripts
        that keep only the last few checkpoints would delete it.
        """
        self.thread_id = threading.get_ident()
        self._on_refusal = on_refusal
        self._on_good = on_good
        self._is_ours = is_ours
        self._kept: dict[str, str] = {}
        """Copies of good files that a script writes through an open file: the script has emptied such a file by the time
        that a bad state is found.
        """
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def findings(self, value: Any) -> list[TensorFinding]:
        """The findings that prevent this save."""
        return [f for f in bad_tensors(value) if self._is_ours(f)]

    def note_good(self, path: str) -> None:
        self.last_good = path
        self.held.pop(_kind(path), None)
        self.refused.pop(os.path.abspath(path), None)
        self._on_good(path)

    def refuse(self, path: str, findings: list[TensorFinding], write: Callable[[str], Any]) -> Any:
        """Write the state under another name, and report it."""
        beside: str | None = refused_name(path)
        result = None
        try:
            result = write(str(beside))
        except OSError:
            beside = None
        if beside is not None:
            self.refused[os.path.abspath(path)] = beside
        good = path if os.path.exists(path) else self.last_good
        if good is not None and good != path:
            self.held.setdefault(_kind(path), os.path.abspath(good))
        found = tuple(findings) or (_elsewhere(),)
        self._on_refusal(Refusal(path, beside, found, good))
        return result

    def must_stay(self, path: Any) -> bool:
        """Whether deleting this file or folder would remove the last good checkpoint."""
        if not self.held or not isinstance(path, (str, os.PathLike)):
            return False
        gone = os.path.abspath(os.fsdecode(path))
        return any(h == gone or h.startswith(gone + os.sep) for h in self.held.values())

    def keep(self, path: str) -> None:
        """Copy a good state that was written through an open file, in case that a bad one follows."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="stayfinite-")
        where = os.path.abspath(path)
        copy = self._kept.setdefault(
            where, os.path.join(self._folder.name, f"{len(self._kept)}.kept")
        )
        shutil.copyfile(where, copy)

    def put_back(self, file: Any) -> bool:
        """Write the last good contents back to a file that the script has emptied; True if there were any."""
        copy = self._kept.get(os.path.abspath(file.name))
        if copy is None:
            return False
        with open(copy, "rb") as kept:
            shutil.copyfileobj(kept, file)
        return True

    def instead(self, path: Any) -> Any:
        """The file to read, if a script reads back a state that was refused."""
        if not self.refused or not isinstance(path, (str, os.PathLike)) or os.path.exists(path):
            return path
        beside = self.refused.get(os.path.abspath(os.fsdecode(path)))
        if beside is None or not os.path.exists(beside):
            return path
        say(
            f"stayfinite: {os.fsdecode(path)} was held back because it is not finite, and nothing "
            f"lies there; reading {beside} instead"
        )
        return beside

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
        self._kept.clear()


def _kind(path: str) -> tuple[str, str]:
    """The common part of checkpoints of one kind: the folder without numbers, and the suffix."""
    folder, name = os.path.split(os.path.abspath(path))
    return re.sub(r"\d+", "#", folder), os.path.splitext(name)[1]


_ungated = threading.local()


def is_ungated() -> bool:
    return bool(getattr(_ungated, "is_set", False))


@contextlib.contextmanager
def ungated() -> Iterator[None]:
    """Disable the gate, for files that are not checkpoints, such as a failed step's state."""
    was = is_ungated()
    _ungated.is_set = True
    try:
        yield
    finally:
        _ungated.is_set = was


def _elsewhere() -> TensorFinding:
    from ...checkpoint import TensorFinding

    return TensorFinding(code="nonfinite_tensor", message="another rank's part of it is not finite")


def refused_name(path: str | os.PathLike[str]) -> str:
    """The name next to `path` for a state that must not replace it.

    >>> refused_name("runs/last.pt"), refused_name("runs/step_100")
    ('runs/last.nonfinite.pt', 'runs/step_100.nonfinite')
    """
    where = Path(path)
    return str(where.with_name(f"{where.stem}{MARK}{where.suffix}"))


@outside_user_code
def bad_tensors(value: Any) -> list[TensorFinding]:
    """What is not finite in a state, by name; one fused pass if everything is finite.

    A mask of -inf by design does not count, nor does a single tensor, which is data and not a state.
    """
    if isinstance(value, Tensor):
        return []
    value = _as_state(value)
    tensors = [t for _, t in named_tensors(value) if t.device.type != "meta"]
    if not tensors:
        return []
    flag = FiniteFlag(tensors[0].device)
    flag.fold_readonly(tensors)
    if not flag.read():
        return []
    from ...checkpoint import scan_object

    report = scan_object(value)
    return [f for f in report.findings if f.code == "nonfinite_tensor" and f.role != "data"]


def _as_state(value: Any) -> Any:
    """Replace whole modules and optimizers, which some scripts save, by their state."""
    if isinstance(value, (nn.Module, torch.optim.Optimizer)):
        return value.state_dict()
    if isinstance(value, dict):
        return {k: _as_state(v) if not isinstance(v, Tensor) else v for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_as_state(v) for v in value)
    return value
