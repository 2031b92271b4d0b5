"""Checks that need a whole folder: shards and their index, distributed checkpoints, a trainer's state file."""

from __future__ import annotations

import time
from pathlib import Path

from .discover import Unit
from .judge import finding
from .limits import FileFault, Limits
from .measure import Probe
from .one_file import report_contents
from .places import Place, open_source, read_small
from .readers.dcp import Item, read_items, read_metadata
from .readers.safetensors import load_json
from .records import FileReport, TensorFinding, worst

__all__ = ["check_index", "dcp_files", "read_trainer_step", "scan_dcp_file"]

_MAX_LISTED = 5


def check_index(unit: Unit, reports: list[FileReport], limits: Limits) -> list[TensorFinding]:
    """Check that every tensor of an index is in its file."""
    found: list[TensorFinding] = []
    for index in (f for f in unit.files if f.name.endswith(".index.json")):
        try:
            raw = read_small(index, limits.max_json)
            weight_map = load_json(raw, limits.begin(), index.name).get("weight_map")
        except FileFault as e:
            found.append(finding(e.code, f"{index.name}: {e}"))
            continue
        except OSError as e:
            found.append(finding("unreadable", f"{index.name} cannot be read: {e.strerror}"))
            continue
        if not isinstance(weight_map, dict):
            continue  # an index of something else
        found.extend(_check_shards(index, weight_map, reports))
    return found


def _check_shards(
    index: Place, weight_map: dict[str, object], reports: list[FileReport]
) -> list[TensorFinding]:
    found = []
    by_name = {Path(r.path).name: r for r in reports}
    shards: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        shards.setdefault(str(shard), set()).add(tensor)
    missing = [shard for shard in shards if shard not in by_name]
    if missing:
        names = ", ".join(f"{m[:120]!r}" for m in missing[:_MAX_LISTED])
        more = f" and {len(missing) - _MAX_LISTED:,} more" if len(missing) > _MAX_LISTED else ""
        message = f"{index.name} needs {names}{more}, which {_is_or_are(missing)} not there"
        found.append(finding("missing_file", message, action="fetch the missing shards again"))
    for shard, wanted in shards.items():
        report = by_name.get(shard)
        if report is None:
            continue
        if report.verdict == "unreadable":
            continue
        held = {n for t in report.tensors for n in (t.name, *t.aliases)}
        lost = sorted(wanted - held)
        if lost:
            more = f" and {len(lost) - _MAX_LISTED} more" if len(lost) > _MAX_LISTED else ""
            names = ", ".join(lost[:_MAX_LISTED])
            found.append(finding("missing_tensor", f"{shard} should hold {names}{more}"))
    return found


def _is_or_are(things: list[str]) -> str:
    return "is" if len(things) == 1 else "are"


def dcp_files(folder: Place, limits: Limits) -> tuple[FileReport, dict[Place, list[Item]]]:
    """The report on a distributed checkpoint's index, and what to read in each file."""
    begin = time.perf_counter()
    index_path = folder / ".metadata"
    try:
        metadata = read_metadata(folder, limits.begin())
        found = [finding(code, message) for code, message in metadata.contents.findings]
        items = {folder / name: pieces for name, pieces in metadata.items.items()}
    except (FileFault, OSError) as e:
        found, items = [finding(getattr(e, "code", "unreadable"), str(e))], {}
    missing = [p for p in items if not p.is_file()]
    for path in missing:
        del items[path]
    if missing:
        names = ", ".join(f"{p.name[:120]!r}" for p in missing[:_MAX_LISTED])
        more = f" and {len(missing) - _MAX_LISTED:,} more" if len(missing) > _MAX_LISTED else ""
        message = f"the index needs {names}{more}, which {_is_or_are([str(p) for p in missing])} not there"
        found.append(finding("missing_file", message))
    report = FileReport(
        path=str(index_path),
        format="dcp metadata",
        verdict=worst([f.severity for f in found] or ["healthy"]),
        size_bytes=index_path.stat().st_size if index_path.exists() else 0,
        findings=tuple(found),
        duration_s=time.perf_counter() - begin,
    )
    return report, items


def scan_dcp_file(path: Place, items: list[Item], limits: Limits, probe: Probe) -> FileReport:
    """One file of a distributed checkpoint."""
    begin = time.perf_counter()
    limits = limits.begin()
    try:
        with open_source(path) as file:
            contents = read_items(file, items, limits)
            return report_contents(contents, str(path), limits, probe, begin, file.size)
    except (FileFault, OSError) as e:
        found = finding(getattr(e, "code", "unreadable"), str(e))
        return FileReport(path=str(path), format="dcp", verdict=found.severity, findings=(found,))


def read_trainer_step(folder: Place, limits: Limits) -> int | None:
    """`global_step` of a transformers checkpoint folder."""
    try:
        raw = read_small(folder / "trainer_state.json", limits.max_json)
        value = load_json(raw, limits.begin(), "trainer_state.json").get("global_step")
    except (OSError, FileFault):
        return None
    return value if isinstance(value, int) else None
