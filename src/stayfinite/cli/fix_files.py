"""Writes the files of `fix`: checks that they are allowed and unchanged, and keeps a copy."""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from ..records import Fix

__all__ = ["Target", "change_files"]

_KEPT = ".before-fix"
_MAX_BYTES = 16 << 20
_CONFIGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")


@dataclass(frozen=True)
class Target:
    """One file, and whether it was written."""

    path: str
    is_done: bool
    message: str


def change_files(
    fixes: Iterable[Fix], named: list[Path], folder: Path, is_undo: bool = False
) -> list[Target]:
    """Write the proved changes, or restore the files; each result says what was done, or why not.

    What one run has proved for one file is written together, as far as it changes different lines.
    """
    done: list[Target] = []
    together: dict[tuple[Path, str | None], list[Fix]] = {}
    for fix in {f.diff: f for f in fixes if f.status == "proved" and f.diff}.values():
        try:
            path = _allowed(fix, named, folder)
            together.setdefault((path, fix.file_sha256), []).append(fix)
        except (UsageError, OSError, UnicodeDecodeError) as e:
            done.append(_not_written(fix, e))
    for (path, _), group in together.items():
        chosen, left = _apart(group)
        try:
            message = _undo(chosen, path) if is_undo else _apply(chosen, path)
            done.append(Target(str(path), True, message))
        except (UsageError, OSError, UnicodeDecodeError) as e:
            done.append(_not_written(chosen[0], e))
            continue
        if left and not is_undo:
            done += [_not_written(fix, _SAME_LINES) for fix in left]
    return done


_SAME_LINES = (
    "it changes lines that another change was written to; run the training again to see whether it is "
    "still needed"
)


def _not_written(fix: Fix, why: object) -> Target:
    return Target(fix.file or "?", False, f"nothing was written: {why}")


def _apart(fixes: list[Fix]) -> tuple[list[Fix], list[Fix]]:
    """Those that change different lines, the first one first; and those that do not."""
    from ..remedies import read_patch

    chosen: list[Fix] = []
    left: list[Fix] = []
    taken: set[int] = set()
    for fix in fixes:
        hunks = read_patch(fix.diff or "").hunks
        lines = {n for h in hunks for n in range(h.start, h.start + max(len(h.before), 1))}
        (left if taken & lines else chosen).append(fix)
        taken |= lines
    return chosen, left


def _allowed(fix: Fix, named: list[Path], folder: Path) -> Path:
    """The file, if the user has named it or it lies below the working folder."""
    from ..remedies import read_patch

    shown = read_patch(fix.diff or "").path
    name = os.path.basename(shown)
    for path in named:
        if path.name == name:
            return _source(path)
    if named:
        raise UsageError(f"the change is of {shown}, which was not named with --file")
    inside = folder / shown
    home = folder.resolve()
    if os.path.isabs(shown) or home not in inside.resolve().parents or not inside.is_file():
        inside = _below(fix, folder)
    return _source(inside)


def _below(fix: Fix, folder: Path) -> Path:
    """The run's own path of the file, where that lies below the folder."""
    recorded = Path(os.path.abspath(fix.file)) if fix.file else None
    home = folder.resolve()
    if recorded is None or home not in recorded.parents or home not in recorded.resolve().parents:
        raise UsageError(
            f"the change is of {fix.file}, which is not below this folder; "
            "go to the project's folder, or name it: --file FILE"
        )
    return recorded


def _source(path: Path) -> Path:
    if path.suffix not in (".py", *_CONFIGS):
        raise UsageError(f"{path} is no Python source and no config file")
    if not path.is_file() or path.is_symlink():
        raise UsageError(f"{path} is no ordinary file")
    if path.stat().st_size > _MAX_BYTES:
        raise UsageError(f"{path} is too large for a source")
    return path


def _read(path: Path) -> str:
    with open(path, encoding="utf-8", newline="") as handle:
        return handle.read()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(text: str) -> str:
    """The text with line feeds only, as Python reads source."""
    return text.replace("\r\n", "\n")


def _changed(fixes: list[Fix], text: str) -> str:
    from ..remedies import Patch, apply_patch, read_patch

    patches = [read_patch(f.diff or "") for f in fixes]
    hunks = sorted((h for p in patches for h in p.hunks), key=lambda h: h.start)
    patch = Patch(patches[0].path, tuple(hunks))
    made = apply_patch(text, patch)
    if patch.path.endswith(_CONFIGS):
        return made
    try:
        ast.parse(made)
    except (SyntaxError, ValueError) as e:
        raise UsageError(f"with the diff the file is no Python any more: {e}") from None
    return made


def _apply(fixes: list[Fix], path: Path) -> str:
    text = _read(path)
    if not _is_that_failed(fixes[0], text):
        if any(_has_become(fixes, before, text) for before in _copies(path)):
            return f"{path} has this change already"
        raise UsageError(
            f"{path} is not the file that failed: it was edited since; run the training again "
            "to see what is left to change"
        )
    made = _changed(fixes, text)
    kept = _next_copy(path)
    _put(kept, text, path)
    _put(path, made, path)
    each = (
        f" in {len(fixes)} places, each proved by itself and not yet run together"
        if len(fixes) > 1
        else ""
    )
    return (
        f"{path} was changed{each}; the old file is {kept.name} "
        "(stayfinite fix ... --undo puts it back)"
    )


def _undo(fixes: list[Fix], path: Path) -> str:
    kept = next(reversed(_copies(path)), None)
    if kept is None:
        raise UsageError(f"there is no {path}{_KEPT}: nothing to put back")
    before = _read(kept)
    if not _is_that_failed(fixes[0], before):
        raise UsageError(f"{kept} is not the file that failed")
    if _read(path) != _changed(fixes, before):
        raise UsageError(f"{path} was changed since --apply; compare it with {kept} by hand")
    os.replace(kept, path)
    return f"{path} is as it was"


def _is_that_failed(fix: Fix, text: str) -> bool:
    return fix.file_sha256 in (_sha256(text), _sha256(_plain(text)))


def _has_become(fixes: list[Fix], before: Path, text: str) -> bool:
    """Whether these changes of an earlier text result in the current one."""
    kept = _read(before)
    return _is_that_failed(fixes[0], kept) and _changed(fixes, kept) == text


def _copies(path: Path) -> list[Path]:
    """The file as it was before each change that was written to it, the first change first."""
    found: list[Path] = []
    while (kept := _copy_name(path, len(found) + 1)).is_file() and not kept.is_symlink():
        found.append(kept)
    return found


def _next_copy(path: Path) -> Path:
    kept = _copy_name(path, len(_copies(path)) + 1)
    if os.path.lexists(kept):
        raise UsageError(f"{kept} is no ordinary file; take it away first")
    return kept


def _copy_name(path: Path, number: int) -> Path:
    """A first fix may reveal a second fault: `train.py.before-fix`, then `train.py.before-fix-2`."""
    return path.with_name(path.name + _KEPT + (f"-{number}" if number > 1 else ""))


def _put(path: Path, text: str, like: Path) -> None:
    """Write atomically, with the permissions of the original file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "x", encoding="utf-8", newline="") as handle:
        handle.write(text)
    os.chmod(temporary, like.stat().st_mode & 0o777)
    os.replace(temporary, path)
