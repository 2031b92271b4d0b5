"""The checkpoints of a run in order: the last good one, and what became bad first."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from .compare import OverlapError, change_between, norm_of, open_tensors
from .contents import NamedTensor
from .limits import FileFault, Limits
from .records import CheckpointReport, RunTimeline, TimelineEntry
from .tree import weight_name

__all__ = ["build_timelines", "is_same_model"]

_MIN_SHARED = 0.5
_Names = frozenset[tuple[str, tuple[int, ...]]]
_MAX_BROKEN = 20


def build_timelines(checkpoints: list[CheckpointReport], limits: Limits) -> list[RunTimeline]:
    """One timeline for each folder that holds several checkpoints of the same model."""
    runs: dict[str, list[CheckpointReport]] = {}
    for checkpoint in checkpoints:
        if checkpoint.link_to is None:
            runs.setdefault(str(Path(checkpoint.path).parent), []).append(checkpoint)
    timelines = []
    for folder, members in runs.items():
        for group in _same_model(members):
            if len(group) > 1:
                timelines.append(_timeline(folder, group, limits))
    return timelines


def _names(checkpoint: CheckpointReport) -> _Names:
    return frozenset(
        (weight_name(tuple(t.name.split("."))), t.stats.shape)
        for f in checkpoint.files
        for t in f.tensors
        if t.role in ("weights", "batchnorm", "buffer", "ema")
    )


def is_same_model(one: CheckpointReport, other: CheckpointReport) -> bool:
    """Whether two checkpoints share most names and shapes of their weights."""
    return _share_most(_names(one), _names(other))


def _share_most(some: _Names, others: _Names) -> bool:
    return len(some & others) >= _MIN_SHARED * len(some | others)


def _same_model(members: list[CheckpointReport]) -> list[list[CheckpointReport]]:
    """Checkpoints that share most names and shapes; what cannot be read joins the largest group."""
    groups: list[tuple[_Names, list[CheckpointReport]]] = []
    lost = []
    for member in members:
        names = _names(member)
        if not names:
            lost.append(member)
            continue
        for known, group in groups:
            if _share_most(names, known):
                group.append(member)
                break
        else:
            groups.append((names, [member]))
    groups = [(names, _with_a_date(group)) for names, group in groups]
    if groups:
        largest = max((group for _, group in groups), key=len)
        is_dated = any(c.step is not None or c.epoch is not None for c in largest)
        for member in lost:
            has_date = member.step is not None or member.epoch is not None
            if not member.is_usable and not _is_side_file(member) and has_date == is_dated:
                largest.append(member)
    return [group for _, group in groups]


def _with_a_date(group: list[CheckpointReport]) -> list[CheckpointReport]:
    """If the other checkpoints have a step, one without a step is an export."""
    dated = [c for c in group if c.step is not None or c.epoch is not None]
    return dated or group


def _is_side_file(checkpoint: CheckpointReport) -> bool:
    return any(t.role in ("rng", "data") for f in checkpoint.files for t in f.tensors)


def _order(checkpoint: CheckpointReport) -> tuple[float, float, float, str]:
    far = math.inf
    step = checkpoint.step if checkpoint.step is not None else far
    epoch = checkpoint.epoch if checkpoint.epoch is not None else far
    return (step, epoch, checkpoint.modified, checkpoint.path)


def _timeline(folder: str, group: list[CheckpointReport], limits: Limits) -> RunTimeline:
    ordered = sorted(group, key=_order)
    entries: list[TimelineEntry] = []
    with contextlib.ExitStack() as before_stack:
        before: dict[str, NamedTensor] = {}
        for checkpoint in ordered:
            stack = contextlib.ExitStack()
            now: dict[str, NamedTensor] = {}
            with contextlib.suppress(OverlapError):  # then it has a verdict, but no norms
                now = stack.enter_context(open_tensors(checkpoint, limits))
            weights = {
                n: t
                for n, t in now.items()
                if t.role == "weights" and t.elements and t.elements.is_float
            }
            entries.append(_entry(checkpoint, weights, before))
            before_stack.close()
            before_stack.push(stack.pop_all().__exit__)
            before = weights
    good = [e.path for e in entries if e.verdict in ("healthy", "suspicious")]
    last_good = good[-1] if good else None
    broken = [e for e in entries if e.verdict not in ("healthy", "suspicious")]
    after = [
        e for e in broken if last_good is None or entries.index(e) > _index(entries, last_good)
    ]
    broke_at = (after or broken)[0].path if broken else None
    names = _broken_tensors(next((c for c in ordered if c.path == broke_at), None))
    return RunTimeline(
        path=folder,
        entries=tuple(entries),
        last_good=last_good,
        broke_at=broke_at,
        first_broken=tuple(names[:_MAX_BROKEN]),
        num_first_broken=len(names),
    )


def _index(entries: list[TimelineEntry], path: str) -> int:
    return next(i for i, e in enumerate(entries) if e.path == path)


def _entry(
    checkpoint: CheckpointReport, weights: dict[str, NamedTensor], before: dict[str, NamedTensor]
) -> TimelineEntry:
    norm: float | None = None
    largest: tuple[float, str] | None = None
    has_matrices = any(len(t.ref.size) > 1 for t in weights.values())
    try:
        if weights:
            norm = math.sqrt(sum(norm_of(t) ** 2 for t in weights.values()))
        for name, tensor in weights.items():
            old = before.get(name)
            if old is None or old.ref.size != tensor.ref.size:
                continue
            if has_matrices and len(tensor.ref.size) < 2:
                continue  # biases start at zero, where every change is large
            moved = change_between(old, tensor).relative
            if moved is not None and (largest is None or moved > largest[0]):
                largest = (moved, tensor.name)
    except FileFault:
        pass  # the file changed under the scan, which its verdict says
    return TimelineEntry(
        path=checkpoint.path,
        verdict=checkpoint.verdict,
        step=checkpoint.step,
        epoch=checkpoint.epoch,
        weight_norm=norm,
        change=largest[0] if largest else None,
        changed_tensor=largest[1] if largest else None,
        rates=checkpoint.rates,
    )


def _broken_tensors(checkpoint: CheckpointReport | None) -> list[str]:
    """The non-finite tensors, those with the fewest bad values first, because they are closer to the origin."""
    if checkpoint is None:
        return []
    found = [
        (f.stats.num_nonfinite / max(f.stats.num_elements, 1), f.tensor)
        for file in checkpoint.files
        for f in file.findings
        if f.code == "nonfinite_tensor" and f.stats is not None and f.tensor is not None
    ]
    return [name for _, name in sorted(found, key=lambda p: p[0])]
