"""Selects, reads and writes the files to lint, in parallel."""

from __future__ import annotations

import io
import multiprocessing
import os
import tempfile
import time
import tokenize
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from .. import remedies
from ..errors import UsageError
from .check import check_source
from .records import Finding, Report, Unreadable
from .settings import Settings

__all__ = ["check_file", "collect", "lint_paths"]

_SKIPPED = {"__pycache__", "node_modules", "build", "dist", "site-packages"}
_MANY = 48
"""From this many files on, a second process is faster."""
_ROUNDS = 10


@dataclass(frozen=True, kw_only=True)
class _Result:
    """The result for one file, returned by a worker."""

    findings: tuple[Finding, ...] = ()
    unreadable: Unreadable | None = None
    num_lines: int = 0
    num_fixed: int = 0
    diff: str = ""


def collect(paths: Iterable[str | Path], exclude: Iterable[str] = ()) -> list[Path]:
    """The Python files below these paths, each once; a missing path is an error."""
    patterns = tuple(exclude)
    found: dict[Path, None] = {}
    for given in paths:
        path = Path(given)
        if path.is_file():
            found[path] = None
        elif path.is_dir():
            found.update(dict.fromkeys(p for p in _walk(path) if not _is_excluded(p, patterns)))
        else:
            raise UsageError(f"no such file or folder: {path}")
    return list(found)


def _walk(folder: Path) -> Iterator[Path]:
    for top, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED and not f.startswith("."))
        for name in sorted(files):
            if name.endswith(".py"):
                yield Path(top, name)


def _is_excluded(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(path.match(p) or any(parent.match(p) for parent in path.parents) for p in patterns)


def lint_paths(
    paths: Iterable[str | Path],
    settings: Settings | None = None,
    jobs: int | None = None,
    fix: bool = False,
    diff: bool = False,
) -> Report:
    """Check all Python files below these paths; with `fix` repair them, with `diff` show the repairs."""
    start = time.perf_counter()
    settings = settings or Settings()
    files = collect(paths, settings.exclude)
    work = partial(check_file, settings=settings, fix=fix, diff=diff)
    results = list(_mapped(work, files, jobs))
    findings = sorted(
        (f for r in results for f in r.findings), key=lambda f: (f.path, f.line, f.column, f.code)
    )
    return Report(
        findings=tuple(findings),
        unreadable=tuple(r.unreadable for r in results if r.unreadable is not None),
        num_files=len(files),
        num_lines=sum(r.num_lines for r in results),
        num_fixed=sum(r.num_fixed for r in results),
        diffs=tuple(r.diff for r in results if r.diff),
        duration_ms=1000 * (time.perf_counter() - start),
    )


def _mapped(work: partial[_Result], files: list[Path], jobs: int | None) -> Iterable[_Result]:
    """In this process for a few files; the large ones first, so that all processes end at the same time."""
    jobs = min(jobs or _cores(), max(1, len(files) // 8))
    if jobs < 2 or len(files) < _MANY:
        return map(work, files)
    by_size = sorted(files, key=lambda f: f.stat().st_size, reverse=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        return list(pool.map(work, by_size, chunksize=8))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_file(path: Path, settings: Settings, fix: bool = False, diff: bool = False) -> _Result:
    """Check one file; a file that cannot be read is reported."""
    try:
        text, encoding = _read(path)
        findings = check_source(text, str(path), settings)
    except (UsageError, OSError, SyntaxError, UnicodeError) as e:
        return _Result(unreadable=Unreadable(path=str(path), reason=str(e)))
    result = _Result(findings=tuple(findings), num_lines=text.count("\n") + 1)
    if not (fix or diff) or not any(f.remedy for f in findings):
        return result
    repaired, rest, count = _repaired(text, str(path), settings, findings)
    shown = remedies.unified_diff(path.as_posix(), text, repaired) if diff else ""
    if fix and not diff:
        _write(path, repaired, encoding)
    return replace(result, findings=tuple(rest), num_fixed=count, diff=shown)


def _repaired(
    text: str, path: str, settings: Settings, findings: list[Finding]
) -> tuple[str, list[Finding], int]:
    """Repair and check again until nothing can be repaired; a repair that breaks the file is dropped."""
    count = 0
    for _ in range(_ROUNDS):
        made, done = remedies.apply(text, [f.remedy for f in findings if f.remedy])
        if not done or made == text:
            break
        try:
            rest = check_source(made, path, settings)
        except UsageError:
            break
        if _repairable(rest) >= _repairable(findings):
            break  # a repair that does not improve the file is dropped
        text, findings, count = made, rest, count + len(done)
    return text, findings, count


def _repairable(findings: list[Finding]) -> int:
    return sum(f.remedy is not None for f in findings)


def _read(path: Path) -> tuple[str, str]:
    """The text with its original line ends, and its encoding."""
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return data.decode(encoding), encoding


def _write(path: Path, text: str, encoding: str) -> None:
    """Write a temporary file and move it over the original, so that a file is never half repaired."""
    mode = path.stat().st_mode
    target = path.resolve()
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(text.encode(encoding))
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
