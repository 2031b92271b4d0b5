"""A resume restored only part of the run, and the restored state diverges."""

from __future__ import annotations

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import num
from .lr_divergence import can_diverge, story

_APART = 1.5


@rule("resume_mismatch")
def only_a_part_was_restored(e: Evidence) -> Finding | None:
    r = e.resume
    if not r.is_resumed or not can_diverge(e) or e.falls_without_bound:
        return None
    score = e.has_diverged or (0.4 if e.is_overflow else 0.0)
    mismatch = what_differs(e)
    if not mismatch or score < 0.3:
        return None
    return Finding(
        confidence=min(0.96, score + 0.08),
        sentence=f"This run was resumed, and {mismatch}. "
        + (
            f"From there on it ran away: {course}."
            if (course := story(e))
            else "It then overflowed."
        ),
        fixes=(
            Fix(
                title=_remedy(e),
                why="a resume must bring back all of it: weights, optimizer, learning rate, schedule "
                "and scaler; load_state_dict of an optimizer also restores the learning rate of the "
                "run that saved it",
                experiment="smaller_lr",
            ),
        ),
        wants=("smaller_lr",),
    )


def what_differs(e: Evidence) -> str:
    """The part of the state that does not match the rest; empty if all match."""
    r = e.resume
    if r.optimizer and _apart(r.configured_lr, r.saved_lr) and not _apart(r.saved_lr, r.first_lr):
        configured, saved_rate = _furthest(r.configured_lr, r.saved_lr)
        return (
            f"the optimizer's saved learning rate of {num(saved_rate)} replaced the configured "
            f"{num(configured)}"
        )
    saved = r.saved_lr or r.file_lr
    if saved and _apart(saved, r.first_lr):
        come_to, started = _furthest(saved, r.first_lr)
        return (
            f"it started at a learning rate of {num(started)} where the checkpoint had come to "
            f"{num(come_to)}"
        )
    if r.model and not r.optimizer and r.file_has_optimizer:
        return "the optimizer's state was in the file but was not loaded"
    if r.file_has_scheduler and r.has_scheduler and not r.scheduler:
        return "the scheduler's state was in the file but was not loaded"
    if r.optimizer and not r.model:
        return "the optimizer was restored but the model was not"
    return ""


def _apart(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Whether the rates of two moments differ by more than half, group by group."""
    if not a or not b or len(a) != len(b):
        return False
    return any(max(x, y) > _APART * max(min(x, y), 1e-30) for x, y in zip(a, b))


def _furthest(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, float]:
    """The rates of the parameter group with the largest ratio of the second to the first."""
    return max(zip(a, b), key=lambda pair: pair[1] / max(pair[0], 1e-30))


def _remedy(e: Evidence) -> str:
    r = e.resume
    if r.optimizer and _apart(r.configured_lr, r.saved_lr) and not _apart(r.saved_lr, r.first_lr):
        return (
            "set the learning rate again after optimizer.load_state_dict: "
            f'for g in optimizer.param_groups: g["lr"] = {num(min(r.configured_lr))}'
        )
    if not r.optimizer and r.file_has_optimizer:
        return "load the optimizer's state too, or warm up from a small learning rate"
    return "restore the scheduler as well (scheduler.load_state_dict), after the optimizer"
