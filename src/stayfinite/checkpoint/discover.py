"""Finds checkpoints in the given files and folders, and groups the files that belong together."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError
from .limits import DEFAULT_LIMITS, Limits
from .places import Place, identity, list_folder, read_head
from .readers import find_reader
from .remote import is_remote, remote_paths
from .tree import clean

__all__ = ["Found", "Unit", "discover", "expand", "step_in_name"]

_MAX_NESTED_FOLDERS = 100
_MAX_PROBLEMS = 100

_SUFFIXES = frozenset(
    {
        ".pt",
        ".pth",
        ".ckpt",
        ".bin",
        ".safetensors",
        ".npy",
        ".npz",
        ".th",
        ".pkl",
        ".pickle",
        ".jit",
        ".ptl",
        ".pt2",
        ".gguf",
    }
)
_CERTAIN = _SUFFIXES - {".bin", ".pkl", ".pickle"}
"""A file with such a name that is not a checkpoint is a finding; a `.bin` file may be anything."""
_STEP = re.compile(r"(?:step|steps|iter|iteration|checkpoint|ckpt|it)[=_\-. ]?(\d+)", re.I)
_EPOCH = re.compile(r"(?:epoch|ep|e)[=_\-. ]?(\d+)", re.I)
_DIGITS = re.compile(r"(?:^|[_\-.=])(\d+)$")
_ABSORBS = re.compile(r"^(checkpoint|ckpt|global_?step|step|iter|epoch)[=_\-]?\d+$", re.I)
_WEIGHT_FILES = (
    "model.safetensors",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
_SKIPPED_FOLDERS = frozenset({".git", "__pycache__", ".venv", "node_modules", ".ipynb_checkpoints"})

_INCIDENT, _CAPSULE = "incident.json", "capsule.pt"
"""The capsule of an incident, which is not a checkpoint to resume from."""


@dataclass
class Unit:
    """One checkpoint: the files that are saved, moved and judged together."""

    path: Place
    kind: str
    """file | transformers | sharded | dcp | deepspeed"""
    files: list[Place] = field(default_factory=list)


def expand(patterns: list[str | os.PathLike[str]]) -> list[Place]:
    """Expand paths, addresses and globs; those without a match are reported together."""
    found: dict[Place, None] = {}
    missing = []
    for pattern in patterns:
        text = os.fspath(pattern)
        if is_remote(text):
            remote = remote_paths(text)
            missing += [] if remote else [text]
            found.update(dict.fromkeys(remote))
            continue
        if os.path.lexists(text):
            found[Path(text)] = None
            continue
        hits = sorted(glob.glob(text, recursive=True)) if glob.has_magic(text) else []
        if not hits:
            missing.append(text)
        found.update(dict.fromkeys(Path(h) for h in hits))
    if missing:
        lines = "\n".join(f"  {clean(m)}" for m in missing)
        raise UsageError(
            f"no such file or folder:\n{lines}\n"
            "try: check the path, or quote a glob like 'runs/**/*.pt'"
        )
    return list(found)


@dataclass
class Found:
    """The files to scan in the requested paths."""

    units: list[Unit] = field(default_factory=list)
    skipped: list[Place] = field(default_factory=list)
    """Files in the folders without tensors."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    """(code, message): folders that were not searched."""


def discover(paths: list[Place], limits: Limits = DEFAULT_LIMITS) -> Found:
    """Find the checkpoints in these paths, and the other files in their folders."""
    units: dict[str, Unit] = {}
    found = Found()
    walk = _Walk(found, limits)
    for path in paths:
        if path.is_dir():
            for unit in walk.folder(path, 0):
                units.setdefault(identity(unit.path), unit)
        else:
            units.setdefault(identity(path), Unit(path, "file", [path]))
    found.units = list(units.values())
    return found


class _Walk:
    """Searches folders with limits on depth and number, because a folder may be untrusted, too."""

    def __init__(self, found: Found, limits: Limits) -> None:
        self._found = found
        self._limits = limits
        self._num_entries = 0

    def folder(self, folder: Place, depth: int) -> list[Unit]:
        entries = self._entries(folder, depth)
        files = [e for e in entries if not e.is_dir()]
        folders = [
            e
            for e in entries
            if e.is_dir() and not e.is_symlink() and e.name not in _SKIPPED_FOLDERS
        ]
        kind = _kind_of(folder, files)
        if kind is None:
            capsule = _CAPSULE if _INCIDENT in {f.name for f in files} else None
            units = [Unit(f, "file", [f]) for f in files if f.name != capsule and is_candidate(f)]
            here = {u.path for u in units}
            self._found.skipped.extend(f for f in files if f not in here)
            for sub in folders:
                units.extend(self.folder(sub, depth + 1))
            return units
        unit = Unit(folder, kind, [f for f in files if _belongs(f)])
        own = set(unit.files)
        self._found.skipped.extend(f for f in files if f not in own and f.name != ".metadata")
        inner = [u for sub in folders for u in self.folder(sub, depth + 1)]
        if _ABSORBS.match(folder.name) or (folder / "trainer_state.json").exists():
            for part in inner:  # the optimizer's own folder inside checkpoint-500/
                unit.files.extend([part.path] if part.kind == "dcp" else part.files)
            inner = []
        return [unit, *inner]

    def _entries(self, folder: Place, depth: int) -> list[Place]:
        if depth > min(self._limits.max_depth, _MAX_NESTED_FOLDERS):
            self._object(
                "limit_exceeded", f"{folder}: folders are nested more than {depth - 1} deep"
            )
            return []
        try:
            entries = sorted(list_folder(folder), key=lambda p: [_natural(p.name), p.name])
        except OSError as e:
            if depth == 0:
                message = f"cannot list the folder {clean(str(folder))}: {e.strerror or e}"
                raise UsageError(message) from None
            self._object("unreadable", f"{folder}: cannot be listed: {e.strerror or e}")
            return []
        room = max(0, self._limits.max_entries - self._num_entries)
        if len(entries) > room:
            limit = self._limits.max_entries
            self._object("limit_exceeded", f"{folder}: more than {limit:,} files in all")
        self._num_entries += len(entries)
        return entries[:room]

    def _object(self, code: str, message: str) -> None:
        if len(self._found.problems) < _MAX_PROBLEMS:
            self._found.problems.append((code, message))


def _belongs(file: Place) -> bool:
    return file.name.endswith(".index.json") or (file.name != ".metadata" and is_candidate(file))


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Sort step_900 before step_1000."""
    parts = re.split(r"(\d{1,18})", name)
    return [(0, int(p)) if p.isdigit() else (1, p) for p in parts if p]


def _kind_of(folder: Place, files: list[Place]) -> str | None:
    names = {f.name for f in files}
    if ".metadata" in names:
        return "dcp"
    if any(n.endswith(("_model_states.pt", "_optim_states.pt")) for n in names):
        return "deepspeed"
    has_weights = any(w in names for w in _WEIGHT_FILES) or any(
        n.endswith(".index.json") for n in names
    )
    if "trainer_state.json" in names or (has_weights and {"config.json", "optimizer.pt"} & names):
        return "transformers"
    if any(n.endswith(".index.json") for n in names):
        return "sharded"
    if _ABSORBS.match(folder.name) and has_weights:
        return "transformers"
    return None


def is_candidate(path: Place) -> bool:
    """Whether a file in a folder is probably a checkpoint, by its content first."""
    try:
        if not path.is_file():
            return False
        head = read_head(path, 64)
    except OSError:
        return path.suffix.lower() in _CERTAIN
    reader = find_reader(head)
    if reader is None or (
        reader.name == "torch zip" and path.suffix.lower() not in _SUFFIXES | {""}
    ):
        return path.suffix.lower() in _CERTAIN
    return True


def step_in_name(path: Place) -> tuple[int | None, int | None]:
    """The step and epoch in a name.

    >>> step_in_name(Path("epoch=3-step=1200.ckpt")), step_in_name(Path("checkpoint-500"))
    ((1200, 3), (500, None))
    """
    name = path.name if path.is_dir() else path.stem
    step, epoch = _STEP.search(name), _EPOCH.search(name)
    if step is None and epoch is None:
        digits = _DIGITS.search(name)
        return (int(digits[1]) if digits and len(digits[1]) < 13 else None), None
    return (
        int(step[1]) if step and len(step[1]) < 13 else None,
        int(epoch[1]) if epoch and len(epoch[1]) < 13 else None,
    )
